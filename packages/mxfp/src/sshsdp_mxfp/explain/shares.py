"""Fractions as text."""


def share(value: float) -> str:
    """A fraction in percent, to three digits; 0 only where it is 0."""
    percent = 100 * value
    if percent == 0:
        return "0"
    if percent < 0.001:
        return "<0.001%"
    return f"{percent:.3f}%" if percent < 0.1 else f"{percent:.3g}%"
