"""What an element costs between steps: the formula of DESIGN 4.6, term by term."""

from dataclasses import dataclass

from sshsdp_fsdp_runtime.plan.atom import AtomPlan
from sshsdp_updates import ROW, TENSOR


@dataclass(frozen=True, slots=True)
class RestingTerm:
    """One field that an atom keeps between steps.

    Attributes:
        role: what it is, as in the forecast.
        nbytes: per element.
        divisor: the degree that cuts it.
    """

    role: str
    nbytes: int
    divisor: int


def resting_terms(atom: AtomPlan) -> tuple[RestingTerm, ...]:
    """Bytes per element of `atom` on one rank: the sum of ``nbytes / divisor``.

    That is ``w/zero3 + a/zero2 + (a/zero1 if zero1 != zero2) + (m/zero1 if main weights are
    separate) + state/zero1``, and ``w/zero3`` of frozen atoms, with w, a and m the bytes of an
    element of weights, accumulators and main weights. What a rule keeps per row or per tensor is
    left out: it is nothing beside what it keeps per element.
    """
    degrees = atom.degrees
    terms = [RestingTerm("weights", atom.weight_dtype.itemsize, degrees.zero3)]
    if atom.rule is None or atom.main_dtype is None:
        return tuple(terms)
    main = atom.main_dtype.itemsize
    terms.append(RestingTerm("gradient sums", main, degrees.zero2))
    if atom.separate_main_grad:
        terms.append(RestingTerm("main gradients", main, degrees.zero1))
    if atom.separate_main:
        terms.append(RestingTerm("main weights", main, degrees.zero1))
    state = sum(
        (field.dtype or atom.main_dtype).itemsize
        for field in atom.rule.state_fields()
        if field.unit not in (ROW, TENSOR)
    )
    if state:
        terms.append(RestingTerm("optimizer state", state, degrees.zero1))
    return tuple(terms)
