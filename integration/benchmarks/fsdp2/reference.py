"""The reference model and its training loop, frozen: results stay comparable over time."""

import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

VOCABULARY, WIDTH, LAYERS, HEADS, HIDDEN = 256, 512, 6, 8, 2048
MICROBATCHES = 4
LEARNING_RATE = 3e-4
PARAMETERS = 19_143_168


class Block(nn.Module):
    """Pre-norm attention with a packed QKV projection, then a SiLU MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp_norm = nn.RMSNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, WIDTH] -> the same shape."""
        packed = self.qkv(self.attention_norm(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).flatten(-2))
        return x + self.down(silu(self.up(self.mlp_norm(x))))


class Decoder(nn.Module):
    """A byte-level decoder with an untied head and no biases."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, tokens] int64 -> logits [batch, tokens, VOCABULARY]."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def build() -> Decoder:
    """The model with the same initial values on every rank and side."""
    torch.manual_seed(0)
    return Decoder()


class Optimizer(Protocol):
    def step(self) -> object: ...
    def zero_grad(self) -> None: ...


def batches(rank: int, steps: int, sequences: int, tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Microbatches of a rank (inputs, targets): arithmetic progressions, which can be learned."""
    generator = torch.Generator().manual_seed(1000 + rank)
    positions = torch.arange(tokens + 1)
    for _ in range(steps * MICROBATCHES):
        start = torch.randint(VOCABULARY, (sequences, 1), generator=generator)
        stride = torch.randint(1, 8, (sequences, 1), generator=generator)
        text = (start + stride * positions) % VOCABULARY
        yield text[:, :-1].contiguous(), text[:, 1:].contiguous()


def train(
    model: nn.Module,
    optimizer: Optimizer,
    rank: int,
    *,
    warmup: int,
    steps: int,
    sequences: int,
    tokens: int,
) -> dict[str, list[float]]:
    """The plain loop of every side.

    Returns:
        "seconds" of each step after the warm-up, and "losses" of all steps (mean of a rank's
        microbatches).
    """
    data = batches(rank, warmup + steps, sequences, tokens)
    seconds, losses = zip(*training(model, optimizer, list(data)), strict=True)
    return {"seconds": list(seconds[warmup:]), "losses": list(losses)}


def training(
    model: nn.Module, optimizer: Optimizer, data: Sequence[tuple[Tensor, Tensor]]
) -> Iterator[tuple[float, float]]:
    """Train step after step; the seconds and the loss of each."""
    for first in range(0, len(data), MICROBATCHES):
        start = time.perf_counter()
        total = 0.0
        for inputs, targets in data[first : first + MICROBATCHES]:
            logits = model(inputs)
            loss = cross_entropy(logits.flatten(0, 1), targets.flatten()) / MICROBATCHES
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        yield time.perf_counter() - start, total
