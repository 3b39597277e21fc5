"""The numbers as plain data, for programs."""

import math
from collections.abc import Sequence

from sshsdp_mxfp.explain.advice import advise
from sshsdp_mxfp.explain.loss import Loss
from sshsdp_mxfp.explain.names import name_of
from sshsdp_mxfp.explain.summary import Summary


def document(title: str, summary: Summary, losses: Sequence[Loss]) -> dict[str, object]:
    """What `json.dumps` takes; shares are fractions of all elements.

    Args:
        title: of the tensor.
        summary: of the tensor.
        losses: at least one.
    """
    return {
        "tensor": {
            "name": title,
            "shape": list(summary.shape),
            "dtype": str(summary.dtype).removeprefix("torch."),
            "zeros": summary.zeros,
            "infinities": summary.infinities,
            "nans": summary.nans,
            "largest": summary.largest,
            "smallest": summary.smallest,
            "exponents": {str(exponent): n for exponent, n in summary.exponents.items()},
        },
        "formats": [_entry(loss) for loss in losses],
        "advice": advise(summary, losses),
    }


def _entry(loss: Loss) -> dict[str, object]:
    return {
        "format": name_of(loss.format),
        "bits_per_element": loss.bits,
        "relative_error_rms": loss.rms,
        "snr_db": None if math.isinf(loss.decibels) else loss.decibels,
        "worst_of_block_maximum": loss.worst,
        "saturated": loss.saturated / loss.numel,
        "flushed_to_zero": loss.vanished / loss.numel,
        "subnormal": loss.subnormal / loss.numel,
        "lost_to_nan": loss.lost / loss.numel,
        "scale_codes": {str(code): n for code, n in enumerate(loss.scales) if n},
    }
