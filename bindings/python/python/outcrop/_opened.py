"""What a program opens: it is closed at the end of a `with` block, or of the program."""

from __future__ import annotations

import atexit
import sys
import weakref
from types import TracebackType
from typing import TYPE_CHECKING

from . import _outcrop
from .errors import OutcropError, Usage

if TYPE_CHECKING:
    from typing_extensions import Self

_open: weakref.WeakSet[Opened] = weakref.WeakSet()


class Opened:
    """A tape, a store or a session. `close` may be called twice."""

    if TYPE_CHECKING:

        def close(self) -> None: ...

    def _close_at_exit(self) -> Self:
        """Has it closed when the program ends, if it is still open then."""
        _open.add(self)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@atexit.register
def _close_all() -> None:
    """Closes all that is open. What one of them has to say does not keep the others open."""
    for opened in list(_open):
        try:
            opened.close()
        except Usage:
            pass  # It belongs to the process from which this one was forked.
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)
            if isinstance(error, OutcropError):
                _outcrop._end_badly()
