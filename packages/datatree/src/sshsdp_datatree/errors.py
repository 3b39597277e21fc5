"""Errors of this package that callers may want to catch."""


class DetachedError(RuntimeError):
    """A node was used that has no storage at the moment; metadata is still there."""
