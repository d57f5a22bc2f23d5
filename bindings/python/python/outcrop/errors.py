"""Everything that can go wrong. Each class is named as the kind of error is in the core, and is the builtin that fits best, too."""


class OutcropError(Exception):
    """What failed, on what, and what can be done."""

    # KeyError would show the message in quotes.
    __str__ = Exception.__str__


class Usage(OutcropError, ValueError):
    """The call makes no sense: a wrong type, length, name, size or setting, or something that is closed."""


class Viewed(Usage, BufferError):
    """A lent array cannot be sealed: views of it are alive."""


class Exists(OutcropError, ValueError):
    """The key or version is in use."""


class Missing(OutcropError, KeyError):
    """There is no such snapshot or version."""


class TooLarge(OutcropError, ValueError):
    """It is larger than the tape's host memory."""


class Full(OutcropError, OSError):
    """There is no room, and none can be made."""


class Held(OutcropError, RuntimeError):
    """There is no room because of what the program holds: arrays that were taken, got or lent."""


class Damaged(OutcropError, OSError):
    """Bytes came back changed."""


class Storage(OutcropError, OSError):
    """A directory or file failed."""


class Busy(OutcropError, OSError):
    """Another process is in the way, or one is missing."""
