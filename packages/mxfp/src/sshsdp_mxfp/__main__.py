"""The command: ``python -m sshsdp_mxfp explain FILE``."""

import sys

from sshsdp_mxfp.explain import main

sys.exit(main())
