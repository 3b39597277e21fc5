"""Decoder: a causal language model of ordinary PyTorch layers.

Nothing here knows of sharding: the trainer shards it like any other `nn.Module`. The query, key and
value projections are separate layers, as in published checkpoints of this architecture. With
experts, the feed-forward layers are mixtures of them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from sshsdp_fsdp_runtime.trainer.experts import Experts

INIT_STD = 0.02
ROPE_BASE = 10_000.0
MOST_LAYERS = 10_000  # more only take long to construct


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """The sizes that define a decoder; every field is a positive int, but for the last two.

    Attributes:
        vocab: number of different tokens.
        context: most tokens of a sequence.
        width: elements of the residual stream.
        layers: number of blocks.
        heads: of queries.
        kv_heads: of keys and values; divides heads.
        hidden: elements of a feed-forward layer; of each expert where there are some.
        experts: feed-forward layers per block, of which a router chooses; 0: one for all tokens.
        active: how many of them a token uses; 0 without experts.

    Raises:
        ValueError: when the sizes don't fit together.
    """

    vocab: int
    context: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    experts: int = 0
    active: int = 0

    def __post_init__(self) -> None:
        for name in ("vocab", "context", "width", "layers", "heads", "kv_heads", "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} >= 1, got {getattr(self, name)}")
        if self.layers > MOST_LAYERS:
            raise ValueError(f"expected layers <= {MOST_LAYERS:,}, got {self.layers:,}")
        step = 2 * self.heads
        if self.width % step:
            raise ValueError(
                f"expected a width that {self.heads} heads divide into even sizes, got"
                f" {self.width}; use {step * max(1, round(self.width / step))}"
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"expected kv_heads to divide heads={self.heads}, got {self.kv_heads}; use one of"
                f" {[n for n in range(1, self.heads + 1) if self.heads % n == 0]}"
            )
        if self.experts < 0:
            raise ValueError(f"expected experts >= 0, got {self.experts}; use 0 for none")
        if self.experts == 0 and self.active != 0:
            raise ValueError(
                f"expected active = 0 without experts, got {self.active}; set experts, or leave out"
                " active"
            )
        if self.experts > 0 and not 1 <= self.active <= self.experts:
            raise ValueError(
                f"expected 1 <= active <= experts = {self.experts}, got active = {self.active};"
                f" use {min(2, self.experts)}"
            )

    @property
    def head_size(self) -> int:
        """Elements of one attention head."""
        return self.width // self.heads

    @property
    def parameters(self) -> int:
        """Elements of all weights, known before any of them exists."""
        attention = 2 * self.width * (self.width + self.kv_heads * self.head_size)
        feed_forward = 3 * self.width * self.hidden * max(1, self.experts)
        block = attention + feed_forward + self.width * (self.experts + 2)  # router, norms
        return self.layers * block + self.width * (2 * self.vocab + 1)


class Rotary(nn.Module):
    """Rotary position embedding (Su et al. 2021, equation 34), in the half-split pairing."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_size: int, context: int) -> None:
        super().__init__()
        frequencies = ROPE_BASE ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
        angles = torch.arange(context, dtype=torch.float64)[:, None] * frequencies
        # A pure function of the shape, so not part of a checkpoint.
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rotate pairs (i, i + head_size / 2) of x: (..., length, head_size) by its position."""
        length = x.shape[-2]
        cos, sin = self.cos[:length].to(x.dtype), self.sin[:length].to(x.dtype)
        low, high = x.chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


class Attention(nn.Module):
    """Causal grouped-query attention: `heads` queries share `kv_heads` keys and values."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_size = shape.heads, shape.kv_heads, shape.head_size
        kv_width = shape.kv_heads * shape.head_size
        self.q_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.k_proj = nn.Linear(shape.width, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.width, kv_width, bias=False)
        self.o_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.rotary = Rotary(shape.head_size, shape.context)

    def forward(self, x: Tensor) -> Tensor:
        """Attend within x: (batch, length, width)."""
        batch, length, width = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_size).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_size).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_size).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            self.rotary(q),
            self.rotary(k),
            v,
            is_causal=True,
            enable_gqa=self.heads != self.kv_heads,
        )
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class SwiGLU(nn.Module):
    """Gated feed-forward layer: down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down_proj = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x: (..., width) to the same shape; with it a 0, as there is nothing to balance."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out, x.new_zeros(())


class Block(nn.Module):
    """One pre-norm layer: attention, then feed-forward, each added to the residual stream."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.attention = Attention(shape)
        self.mlp_norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.mlp = _feed_forward(shape)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x: (batch, length, width) to the same shape; with it the balance loss of experts."""
        x = x + self.attention(self.attention_norm(x))
        added, balance = self.mlp(self.mlp_norm(x))
        return x + added, balance


def _feed_forward(shape: DecoderShape) -> SwiGLU | Experts:
    if shape.experts == 0:
        return SwiGLU(shape)
    return Experts(shape.width, shape.hidden, experts=shape.experts, active=shape.active)


class Decoder(nn.Module):
    """Token ids in, next-token logits out.

    Args:
        shape: the sizes.
        seed: of the initial values, which depend on nothing else.
    """

    def __init__(self, shape: DecoderShape, *, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.head = nn.Linear(shape.width, shape.vocab, bias=False)
        self._initialize(torch.Generator().manual_seed(seed))

    def _initialize(self, generator: torch.Generator) -> None:
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                continue
            # Layers that write into the residual stream start smaller, so that its variance does
            # not grow with depth (Radford et al. 2019, section 2.3).
            residual = name.endswith(("o_proj.weight", "down_proj.weight", "down_proj"))
            std = INIT_STD / math.sqrt(2 * self.shape.layers) if residual else INIT_STD
            nn.init.normal_(parameter, std=std, generator=generator)

    def forward(self, tokens: Tensor, *, balance: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Predict what follows each token.

        Args:
            tokens: int64 (batch, length <= context).
            balance: also return the balance loss.

        Returns:
            Logits (batch, length, vocab); on request with the sum over blocks of how unevenly
            tokens used experts, 0-d: to be added to the loss, times `BALANCE`. 0 without experts.
        """
        x = self.embed(tokens)
        uneven = x.new_zeros(())
        for layer in self.layers:
            x, own = layer(x)
            uneven = uneven + own
        logits: Tensor = self.head(self.norm(x))
        return (logits, uneven) if balance else logits
