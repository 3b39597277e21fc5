"""Sample: text that the model makes up."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class NoSampleError(RuntimeError):
    """The model gives nothing to draw from."""


def generate(
    forward: Callable[[Tensor], Tensor],
    prompt: Sequence[int],
    *,
    count: int,
    context: int,
    temperature: float,
    seed: int,
) -> list[int]:
    """Continue `prompt` by `count` tokens.

    Every rank calls this with the same arguments: the number of forwards depends on nothing else,
    and with equal weights the tokens are the same too.

    Args:
        forward: tokens (1, length) to logits (1, length, vocab).
        prompt: at least one token.
        count: of new tokens.
        context: most tokens that one forward sees; the latest ones.
        temperature: logits are divided by it; 0 takes the likeliest token.
        seed: of the draws.

    Returns:
        The new tokens.

    Raises:
        NoSampleError: logits are not finite.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            logits = forward(torch.tensor([tokens[-context:]]))[0, -1].float()
            if not bool(torch.isfinite(logits).all()):
                raise NoSampleError(
                    "no sample: expected finite outputs of the model, got inf or NaN; the losses"
                    " say since when"
                )
            tokens.append(_draw(logits, temperature, generator))
    return tokens[len(prompt) :]


def printable(text: str, encoding: str) -> str:
    """`text` without what could confuse a terminal or what `encoding` can't say."""
    safe = "".join(each if each.isprintable() or each in "\n\t" else "\ufffd" for each in text)
    return safe.encode(encoding, "replace").decode(encoding)


def _draw(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    # Shifted and in FP64, so that the smallest temperature gives the likeliest token, not NaN.
    scaled = (logits.double() - logits.max()) / temperature
    weights = torch.softmax(scaled, dim=-1).float()
    return int(torch.multinomial(weights, 1, generator=generator))
