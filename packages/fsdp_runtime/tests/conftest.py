"""What every rank needs is imported and looked up here once, not after its fork by each of them."""

import torch
import torch._dynamo  # a second; `torch.compiler.disable` needs it

import sshsdp_zerosm.composite
import sshsdp_zerosm.process_group
import sshsdp_zerosm.shared_memory  # noqa: F401
from sshsdp_fsdp_runtime import ModelSpec, build_plan

build_plan(ModelSpec.of(torch.nn.Linear(1, 1)), 1).signature()  # the versions that ranks compare
