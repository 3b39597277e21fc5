"""A model whose attention and gated unit are packed, with what makes sharing a product hard."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sshsdp_fsdp_runtime import Pack

WIDTH, VOCABULARY = 6, 11
PACKS = [
    Pack("layers.*.attention", ["query", "key", "value"]),
    Pack("layers.*", ["gate", "up", "unused"]),
]


class Attention(nn.Module):
    """Two query heads over one key and value head; rotates queries in place."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.out = nn.Linear(8, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, 4, bias=bias)
        self.key = nn.Linear(WIDTH, 4, bias=bias)
        self.query = nn.Linear(WIDTH, 8, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key, query, value = self.key(x), self.query(x), self.value(x)
        query[..., 1::2].mul_(-0.5)
        heads = query.unflatten(-1, (2, 4))
        # No softmax: gradients of key biases would be nothing but rounding, which AdamW scales up.
        scores = torch.einsum("bqhd,bkd->bhqk", heads, key).tanh()
        mixed: torch.Tensor = self.out(torch.einsum("bhqk,bkd->bqhd", scores, value).flatten(2))
        return mixed


class Block(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.attention = Attention(bias)
        self.gate = nn.Linear(WIDTH, 7, bias=bias)
        self.up = nn.Linear(WIDTH, 7, bias=bias)
        self.unused = nn.Linear(WIDTH, 3, bias=bias)
        self.down = nn.Linear(7, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x)
        gated: torch.Tensor = self.down(torch.tanh(self.gate(x)) * self.up(x))
        return x + gated


class Model(nn.Module):
    """Args: `reentrant` says how blocks are checkpointed; None: they are not."""

    def __init__(self, bias: bool = True, reentrant: bool | None = None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block(bias) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            if self.reentrant is None:
                x = layer(x)
            else:
                x = checkpoint(layer, x, use_reentrant=self.reentrant)
        scores: torch.Tensor = self.head(x)
        return scores


def fresh(bias: bool = True, reentrant: bool | None = None) -> Model:
    torch.manual_seed(0)
    return Model(bias, reentrant).double()
