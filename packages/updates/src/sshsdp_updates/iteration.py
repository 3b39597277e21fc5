"""Newton-Schulz iterations by name; a name stands for all of its numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal

Triple = tuple[float, float, float]

_KJ: Triple = (3.4445, -4.7750, 2.0315)
_PE: tuple[Triple, ...] = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845749493, 0.4188073119525673),
)


@dataclass(frozen=True)
class Iteration:
    """``X <- a X + (b A + c A A) X`` with ``A = X X^T``, from ``X = G / (norm * |G|)``.

    In exact arithmetic it maps the singular values s of ``G / (norm * |G|)`` to ``p(s)``, p the
    composition of the odd polynomials ``a s + b s^3 + c s^5``, and leaves the vectors as they are.

    Attributes:
        coefficients: (a, b, c) of each step.
        steps: how many make the iteration complete.
        after: what follows when there are more steps than coefficients.
        norm: factor on the Frobenius norm, a margin for rounding.
    """

    coefficients: tuple[Triple, ...]
    steps: int
    after: Literal["cycle", "last"] = "cycle"
    norm: float = 1.0

    def sequence(self, steps: int | None = None) -> tuple[Triple, ...]:
        """Return the coefficients of each of so many steps; None is `steps` of the table."""
        count = self.steps if steps is None else steps
        known = len(self.coefficients)
        return tuple(
            self.coefficients[index % known if self.after == "cycle" else min(index, known - 1)]
            for index in range(count)
        )


def _damped(coefficients: Sequence[Triple], factor: float) -> tuple[Triple, ...]:
    """Shrink the arguments of all steps but the last one, against overshoot by rounding."""
    inner = tuple((a / factor, b / factor**3, c / factor**5) for a, b, c in coefficients[:-1])
    return (*inner, coefficients[-1])


ITERATIONS = {
    # Jordan et al. 2024: steepest at 0, does not converge; p in 0.68 .. 1.13 over 0.007 .. 1.
    "kj5": Iteration((_KJ,), 5),
    # You 2024: p in 0.98 .. 1.03.
    "quintic5": Iteration(
        (
            (4.0848, -6.8946, 2.9270),
            (3.9505, -6.3029, 2.6377),
            (3.7418, -5.5913, 2.3037),
            (2.8769, -3.1427, 1.2046),
            (2.8366, -3.0525, 1.2012),
        ),
        5,
    ),
    # Amsel et al. 2025, as in the paper: 1.01 in the norm and in all steps but the last.
    "polar_express_101": Iteration(_damped(_PE, 1.01), 5, "last", 1.01),
    # The same method for a norm of 1.02, as in modded-nanogpt.
    "polar_express_102": Iteration(
        (
            (8.156554524902461, -22.48329292557795, 15.878769915207462),
            (4.042929935166739, -2.808917465908714, 0.5000178451051316),
            (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
            (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
            (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
        ),
        5,
        "last",
        1.02,
    ),
    # Grishina et al. 2025.
    "cans5": Iteration(
        (
            (8.4703, -25.1081, 18.6293),
            (4.1828, -3.1087, 0.5806),
            (3.9619, -2.9541, 0.5630),
            (3.2866, -2.4647, 0.5074),
            (2.2737, -1.6447, 0.4162),
        ),
        5,
        "last",
    ),
    # Steep steps, then two that converge: p in 1.000 .. 1.001.
    "steep8_exact2": Iteration((*(_KJ,) * 8, (2.0, -1.5, 0.5), (2.0, -1.5, 0.5)), 10, "last"),
    # No fifth powers, so two products per step and not three.
    "cubic5": Iteration(
        (
            (3.3656576, -3.3420992, 0.0),
            (2.5744352, -1.4957376, 0.0),
            (2.5368962, -1.4312570, 0.0),
            (2.4418906, -1.2764040, 0.0),
            (2.2230472, -0.9630650, 0.0),
        ),
        5,
    ),
}
"""Tables of coefficients, with the number of steps and the factor on the norm they are made for."""


def iteration_of(given: str | Sequence[float] | Iteration) -> Iteration:
    """Return the iteration for a name, for one (a, b, c), or as it is.

    Raises:
        ValueError: there is none of this name, or not three numbers.
    """
    if isinstance(given, Iteration):
        return given
    if isinstance(given, str):
        if given not in ITERATIONS:
            raise ValueError(
                f"expected ns_coefficients among {', '.join(ITERATIONS)}, or (a, b, c), got "
                f"{given!r}"
            )
        return ITERATIONS[given]
    triple = isinstance(given, Sequence) and len(given) == 3
    if not triple or not all(isinstance(number, Real) for number in given):
        raise ValueError(f"expected three ns_coefficients (a, b, c), got {given!r}")
    a, b, c = given
    return Iteration(((float(a), float(b), float(c)),), 5)
