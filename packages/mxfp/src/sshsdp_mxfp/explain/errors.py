"""Errors that the person at the command line can mend."""

EXTRA = "pip install 'sshsdp-mxfp[explain]'"


class UserError(ValueError):
    """Shown without a traceback; the exit status is 2."""


def missing(what: str, purpose: str) -> UserError:
    """A library of the extra isn't installed."""
    return UserError(f"expected {what} {purpose}, which is not installed; do: {EXTRA}")
