"""The command as a module: ``torchrun ... -m sshsdp_fsdp_runtime.trainer train ...``."""

import sys

from sshsdp_fsdp_runtime.trainer.cli import main

sys.exit(main())
