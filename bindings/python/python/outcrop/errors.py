"""Everything that can go wrong. Each class is named as the kind of error is in the core, and is the builtin that fits best, too."""

from __future__ import annotations

import os
from typing import Any


class OutcropError(Exception):
    """What failed, on what, and what can be done."""

    # KeyError would show the message in quotes.
    __str__ = Exception.__str__


class Usage(OutcropError, ValueError):
    """The call makes no sense: a wrong type, length, name, size or setting, or something that is closed."""


class WrongType(Usage, TypeError):
    """An argument is of a type that makes no sense."""


class Exists(OutcropError, ValueError):
    """The key or version is in use."""


class Missing(OutcropError, KeyError):
    """There is no such snapshot or version."""


class TooLarge(OutcropError, ValueError):
    """It is larger than the memory that it has to pass through: the host memory of a tape, or what the system can give to read it."""


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


# Kinds of errors that are also what Python makes of an error of the system.
_of_system: dict[tuple[str, str], Any] = {}


def of_system(kind: Any, number: int, message: str) -> OutcropError:
    """The error of a kind that the system has caused with this `errno`: also a FileNotFoundError, a PermissionError and so on."""
    made: Any = kind
    builtin = type(OSError(number, ""))
    if issubclass(kind, OSError) and builtin is not OSError:
        names = kind.__name__, builtin.__name__

        def __reduce__(error: Any) -> Any:
            # It has the name of its kind, by which it would not be found.
            return of_system, (kind, error.errno, str(error))

        if names not in _of_system:
            content = {"__doc__": kind.__doc__, "__module__": kind.__module__, "__reduce__": __reduce__}
            _of_system[names] = type(kind.__name__, (kind, builtin), content)
        made = _of_system[names]
    error: Any = made(message)
    if isinstance(error, OSError):
        error.errno, error.strerror = number, os.strerror(number)
    return error  # type: ignore[no-any-return]
