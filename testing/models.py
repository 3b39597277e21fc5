"""Small models that hold everything that makes sharding hard."""

import torch
from torch import nn


class Block(nn.Module):
    """Linear layers with and without bias, a norm, a scalar, and parameters that get nothing."""

    def __init__(self, width: int, hidden: int) -> None:
        """Odd sizes welcome."""
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width, bias=False)
        self.scale = nn.Parameter(torch.tensor(0.7))  # 0-d
        self.frozen = nn.Parameter(torch.full((width,), 0.5), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))
        self.empty = nn.Parameter(torch.ones(0, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Residual branch."""
        hidden = torch.tanh(self.up(self.norm(x)))
        branch: torch.Tensor = self.scale * self.down(hidden)
        return x + branch + self.frozen


class TiedModel(nn.Module):
    """Token ids in, scores out; the embedding is tied to the head."""

    shift: torch.Tensor

    def __init__(
        self, vocabulary: int = 13, width: int = 5, hidden: int = 7, depth: int = 3
    ) -> None:
        """Defaults are primes, and smaller than some worlds' chunks."""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, hidden) for _ in range(depth))
        self.gain = nn.Parameter(torch.ones(2))  # fewer elements than ranks
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("shift", torch.linspace(0.0, 1.0, vocabulary))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores of shape (batch, length, vocabulary)."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        scores: torch.Tensor = self.head(x * self.gain.prod())
        return scores + self.shift
