"""Experts: a feed-forward layer of which every token uses a few parts, chosen by a router."""

import torch
from torch import Tensor, nn
from torch.nn import functional

BALANCE = 0.01
"""Weight of the balance loss beside the loss of the model (Fedus et al. 2022, section 2.2)."""


class Experts(nn.Module):
    """Gated feed-forward layers, of which each token goes to the `active` likeliest ones.

    An expert's output counts by the router's probability for it, as is: with probabilities that are
    scaled to a sum of 1 a router would not learn when one expert is active. No token is dropped,
    and an expert without tokens has a gradient of zeros.

    A weight holds the matrices of all experts, [experts, outputs, inputs], and gate and up are
    apart, so that an optimizer for matrices has each of them as one contiguous piece. Experts are
    multiplied one after another: on CPUs that is as fast as `grouped_mm`, which has no FP64.

    Args:
        width: elements of a token.
        hidden: elements of the layer inside an expert.
        experts: how many there are.
        active: how many of them a token uses.
    """

    def __init__(self, width: int, hidden: int, *, experts: int, active: int) -> None:
        super().__init__()
        self.active = active
        self.router = nn.Linear(width, experts, bias=False)
        self.gate_proj = nn.Parameter(torch.empty(experts, hidden, width))
        self.up_proj = nn.Parameter(torch.empty(experts, hidden, width))
        self.down_proj = nn.Parameter(torch.empty(experts, width, hidden))
        for weight in (self.gate_proj, self.up_proj, self.down_proj):
            nn.init.uniform_(weight, -(weight.shape[-1] ** -0.5), weight.shape[-1] ** -0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x: (batch, length, width) to the same shape, and tell how uneven the choices were.

        Returns:
            The output, and the balance loss: 0-d, see `balance_loss`.
        """
        scores = self.router(x).softmax(dim=-1)
        weights, chosen = scores.topk(self.active, dim=-1)
        tokens = x.reshape(-1, x.shape[-1])
        # Sorted by expert, so that each has its tokens in one piece.
        order = chosen.flatten().argsort(stable=True)
        rows = order // self.active
        outputs = self._compute(tokens.index_select(0, rows), chosen)
        weighted = outputs * weights.flatten()[order, None]
        mixed = torch.zeros_like(tokens).index_add(0, rows, weighted)
        return mixed.view(x.shape), balance_loss(scores, chosen)

    def _compute(self, tokens: Tensor, chosen: Tensor) -> Tensor:
        """Each expert's output for its tokens, which lie together in the order of experts."""
        counts = chosen.flatten().bincount(minlength=self.router.out_features)
        parts = torch.split(tokens, counts.tolist())
        # Not indexed: the backward of unbind writes the gradient of a weight once, not per expert.
        weights = (self.gate_proj.unbind(), self.up_proj.unbind(), self.down_proj.unbind())
        return torch.cat(
            [
                functional.linear(
                    functional.silu(functional.linear(part, gate)) * functional.linear(part, up),
                    down,
                )
                for part, gate, up, down in zip(parts, *weights, strict=True)
            ]
        )


def balance_loss(scores: Tensor, chosen: Tensor) -> Tensor:
    """How unevenly tokens use experts: 1 where evenly, more the more they agree on a few (0-d).

    The sum over experts of (experts x share of the choices) x (mean probability), the loss of the
    Switch transformer (Fedus et al. 2022, equation 4), within each sequence (DeepSeek-AI 2024,
    "DeepSeek-V3", equation 17) and averaged over them: so it doesn't depend on which sequences lie
    on which rank or in which microbatch.

    Args:
        scores: probabilities (batch, length, experts); the gradient flows through them.
        chosen: int64 indices of experts (batch, length, active).
    """
    used = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
    shares = used.mean(dim=1) * (scores.shape[-1] / chosen.shape[-1])
    return (shares * scores.mean(dim=1)).sum(dim=-1).mean()
