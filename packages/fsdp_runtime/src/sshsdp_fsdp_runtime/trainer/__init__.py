"""The command `sshsdp`: trains a decoder language model with the sharded runtime."""

from sshsdp_fsdp_runtime.trainer.cli import main
from sshsdp_fsdp_runtime.trainer.config import (
    CorpusConfig,
    ModelConfig,
    OptimizerConfig,
    ReportConfig,
    TrainConfig,
)
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.model import Decoder, DecoderShape

__all__ = [
    "CorpusConfig",
    "Decoder",
    "DecoderShape",
    "InputError",
    "ModelConfig",
    "OptimizerConfig",
    "ReportConfig",
    "TrainConfig",
    "main",
]
