"""The command `sshsdp`: trains a decoder language model with the sharded runtime."""

from .cli import main
from .config import CorpusConfig, ModelConfig, OptimizerConfig, ReportConfig, TrainConfig
from .errors import InputError
from .model import Decoder, DecoderShape

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
