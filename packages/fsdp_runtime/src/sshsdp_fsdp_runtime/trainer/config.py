"""TrainConfig: everything a run depends on, as frozen values.

The docstring under a field is its help text on the command line, and the field's dotted path is its
key in the TOML file.
"""

import os
from dataclasses import dataclass, field, fields, replace
from math import gcd, inf
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.model import DecoderShape
from sshsdp_fsdp_runtime.trainer.sizes import named_shape
from sshsdp_fsdp_runtime.trainer.trace_window import TraceWindow

_LONGEST_TIMEOUT = 1_000_000  # seconds, as `sshsdp_zerosm.connect` takes
_THREADS_ANYWHERE = 64


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The decoder's sizes."""

    size: str = "tiny"
    """Named size: nano, tiny, small, medium, or tiny-moe with a mixture of experts."""
    width: int | None = None
    """Elements of the residual stream; None: as the named size says (here and below)."""
    layers: int | None = None
    """Number of blocks."""
    heads: int | None = None
    """Query heads."""
    kv_heads: int | None = None
    """Key and value heads; divides heads."""
    hidden: int | None = None
    """Elements of the feed-forward layer; of each expert where there are some."""
    experts: int | None = None
    """Feed-forward layers per block, of which each token uses some (a mixture of experts); 0: one
    layer for all tokens."""
    active: int | None = None
    """How many experts a token uses."""

    def shape(self, *, vocab: int, context: int) -> DecoderShape:
        """The named size with the given fields in place of its own.

        Raises:
            InputError: an unknown name, or sizes that don't fit together.
        """
        named = named_shape(self.size, vocab=vocab, context=context)
        given = {name: getattr(self, name) for name in _names(self) if name != "size"}
        try:
            return replace(named, **{name: n for name, n in given.items() if n is not None})
        except ValueError as error:
            raise InputError(f"[model] {error}") from error


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """How data becomes tokens."""

    tokenizer: Path | None = None
    """A tokenizer.json of Hugging Face `tokenizers`; None: the bytes of the text are the tokens."""
    token_dtype: Literal["uint8", "uint16", "uint32"] = "uint16"
    """Element type of .bin files, little-endian (.npy files carry their own)."""
    validation_fraction: float = 0.05
    """Share of the tokens that is held out, in whole documents or large pieces of them."""

    def __post_init__(self) -> None:
        if not 0 < self.validation_fraction < 1:
            raise InputError(
                "expected 0 < corpus.validation_fraction < 1, got"
                f" {self.validation_fraction}; use 0.05"
            )


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer and its learning rate over time."""

    name: Literal["muon", "adamw"] = "muon"
    """muon: matrices of the blocks by Muon, attention head by head and experts one by one, and the
    rest by AdamW; adamw: everything by AdamW."""
    lr: float = 1e-3
    """Peak learning rate of AdamW."""
    muon_lr: float = 6e-3
    """Peak learning rate of Muon, whose updates have a root mean square of 0.2 times that."""
    momentum: float = 0.95
    """Decay of Muon's momentum."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of AdamW's first and second moment."""
    weight_decay: float = 0.1
    """Decoupled decay; of matrices only."""
    clip: float = 1.0
    """Gradients whose global 2-norm is larger are scaled down to it."""
    warmup_steps: int = 100
    """Steps of linear warm-up."""
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    """Shape of the decay from the end of the warm-up to the last step."""
    final_lr_fraction: float = 0.1
    """Learning rate of the last step as a share of the peak."""

    def __post_init__(self) -> None:
        for name in ("lr", "muon_lr", "clip"):
            if not getattr(self, name) > 0:
                raise InputError(f"expected optimizer.{name} > 0, got {getattr(self, name)}")
        for name in ("warmup_steps", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise InputError(f"expected optimizer.{name} >= 0, got {getattr(self, name)}")
        for name in ("lr", "muon_lr", "weight_decay"):
            if getattr(self, name) == inf:
                raise InputError(f"expected a finite optimizer.{name}, got inf")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(
                f"expected 0 <= optimizer.betas < 1, got {self.betas}; use (0.9, 0.95)"
            )
        if not 0 <= self.momentum < 1:
            raise InputError(f"expected 0 <= optimizer.momentum < 1, got {self.momentum}; use 0.95")
        if not 0 <= self.final_lr_fraction <= 1:
            raise InputError(
                "expected 0 <= optimizer.final_lr_fraction <= 1, got"
                f" {self.final_lr_fraction}; use 0.1"
            )


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """What a run tells and keeps; none of it changes the numbers."""

    log_every: int = 10
    """Steps between plain progress lines (a terminal shows every step)."""
    evaluate_every: int = 100
    """Steps between validation losses; the last step always has one."""
    validation_windows: int = 128
    """Sequences of the validation split that the validation loss averages over."""
    checkpoint_every: int = 400
    """Steps between checkpoints; the last step always has one."""
    keep_checkpoints: int = 2
    """Newest checkpoints that are kept."""
    background_checkpoints: bool = False
    """Write checkpoints while training goes on, from a copy in memory of what a rank saves."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run folder (extra `tensorboard`)."""
    sample_tokens: int = 256
    """Length of the text sampled at the end; 0: none."""
    sample_temperature: float = 0.8
    """0: the likeliest token every time."""
    sample_prompt: str = ""
    """Where the sampled text starts; empty: the first tokens of the validation split."""

    def __post_init__(self) -> None:
        _check_positive(
            self,
            "report.",
            (
                "log_every",
                "evaluate_every",
                "validation_windows",
                "checkpoint_every",
                "keep_checkpoints",
            ),
        )
        for name in ("sample_tokens", "sample_temperature"):
            if not getattr(self, name) >= 0:
                raise InputError(f"expected report.{name} >= 0, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class DebugConfig:
    """Aids for finding faults; none of them changes the numbers."""

    trace: Annotated[str | None, tyro.conf.arg(aliases=["--trace"])] = None
    """Steps to record a Chrome trace of: STEP, or STEP:STEPS for several; into the run folder, a
    file per rank and one of all."""
    stragglers: Annotated[bool, tyro.conf.arg(aliases=["--stragglers"])] = False
    """Print at the end where the time of each rank went and who was waited for."""
    poison: Annotated[bool, tyro.conf.arg(aliases=["--poison"])] = False
    """Give each rank buffers of its own and fill what was released with NaN, so that a read of it
    shows in the loss; slower, and takes more memory."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One run."""

    data: tuple[Path, ...] = ()
    """Files and folders of text, JSONL (field "text") or token arrays (.npy, .bin); none: the
    source text of the Python standard library."""
    steps: int = 1200
    """Optimizer steps."""
    batch: int = 8
    """Sequences per step over all ranks; the ranks' number divides it."""
    microbatch: int = 8
    """Most sequences that a rank puts through the model at once."""
    context: int = 256
    """Tokens per sequence."""
    seed: int = 0
    """Of the initial values and the order of the data."""
    ranks: int | None = None
    """Processes that share the model; None: 2, or what torchrun says."""
    nodes: int | None = None
    """Nodes that the ranks act as, to try on one host what happens between hosts; None: one per
    host."""
    threads: int = 1
    """Threads of the rank when there is one; several ranks have one thread each."""
    timeout: float = 300.0
    """Seconds that a rank waits for another one before the run ends with an error."""
    runs: Path = Path("runs")
    """Folder that run folders are made in."""
    name: str | None = None
    """Name of the run folder; None: the date and time."""
    model: ModelConfig = field(default_factory=ModelConfig)
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)

    def __post_init__(self) -> None:
        _check_positive(self, "", ("steps", "batch", "microbatch", "context", "threads"))
        if not 0 < self.timeout <= _LONGEST_TIMEOUT:
            raise InputError(
                f"expected 0 < timeout <= {_LONGEST_TIMEOUT:,} seconds, got {self.timeout}; use 300"
            )
        if not -(2**63) <= self.seed < 2**63:
            raise InputError(f"expected a seed of at most 64 bits with its sign, got {self.seed}")
        for name in ("ranks", "nodes"):
            if getattr(self, name) is not None:
                _check_positive(self, "", (name,))
        _ = self.trace_window  # checked

    @property
    def trace_window(self) -> TraceWindow | None:
        """The steps that ``debug.trace`` names."""
        return None if self.debug.trace is None else TraceWindow.parse(self.debug.trace, self.steps)

    def with_ranks(self, ranks: int) -> "TrainConfig":
        """This run on `ranks` ranks.

        Raises:
            InputError: when the batch, the nodes or the threads don't fit that number.
        """
        if self.batch % ranks:
            raise InputError(
                f"expected a batch that {ranks} ranks divide, got {self.batch};"
                f" use {ranks * max(1, round(self.batch / ranks))}"
            )
        if self.nodes is not None and ranks % self.nodes:
            more = self.nodes * -(-ranks // self.nodes)
            raise InputError(
                f"expected nodes that share {ranks} ranks evenly, got {self.nodes};"
                f" use {gcd(ranks, self.nodes)}, or {more} ranks"
            )
        # The limit is not the number of cores alone: a configuration may have come from elsewhere.
        most = max(_THREADS_ANYWHERE, os.cpu_count() or 1)
        if self.threads > most:
            raise InputError(
                f"expected threads <= {most}, got {self.threads}; use as many as there are cores"
            )
        if ranks > 1 and self.threads > 1:
            raise InputError(
                f"expected threads = 1 for {ranks} ranks, got {self.threads}: several ranks have"
                " one thread each; use more ranks instead"
            )
        return replace(self, ranks=ranks)


def _names(config: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(config))


def _check_positive(config: Any, prefix: str, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise InputError(f"expected {prefix}{name} >= 1, got {getattr(config, name)}")
