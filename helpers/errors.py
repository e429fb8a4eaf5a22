"""The one error a reader is meant to see: bad input, named in one sentence."""


class InputError(ValueError):
    """An input that is not understood (file, key, value, unit, option).

    The message is one sentence that names the thing. The command line prints it as
    ``error: …`` and exits with code 2; it never becomes a plausible wrong number.
    """
