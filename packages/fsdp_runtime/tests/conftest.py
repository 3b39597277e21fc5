"""What every rank needs is imported here once, not after its fork by each of them."""

import torch._dynamo  # noqa: F401  # a second; `torch.compiler.disable` needs it

import sshsdp_zerosm.composite
import sshsdp_zerosm.process_group
import sshsdp_zerosm.shared_memory  # noqa: F401
