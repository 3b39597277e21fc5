"""InputError: what the user gave can't be used, and the text says what to do."""


class InputError(ValueError):
    """Bad configuration, data or run folder; shown without a traceback, exit status 2."""
