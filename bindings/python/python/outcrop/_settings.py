"""Keyword arguments as the text that the core understands, and what is open when the program ends."""

from __future__ import annotations

import atexit
import json
import operator
import os
import weakref
from collections.abc import Mapping
from typing import Any

from .errors import Usage

_open: weakref.WeakSet[Any] = weakref.WeakSet()


def text(settings: Mapping[str, object]) -> str:
    """Settings as JSON. Those that are None are left out."""
    given = {key: value for key, value in settings.items() if value is not None}
    try:
        return json.dumps(given, default=_plain)
    except (TypeError, ValueError) as error:
        raise Usage(f"a setting is neither text, number, path nor a list or dictionary of them: {error}") from error


def _plain(value: Any) -> object:
    """Paths as texts, numbers of NumPy as numbers, ranges and other sequences as lists."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    for number in (operator.index, float):
        try:
            return number(value)
        except (TypeError, ValueError):
            pass
    return list(value)


def close_at_exit(thing: Any) -> None:
    """Closes it when the program ends, if it is still open then."""
    _open.add(thing)


@atexit.register
def _close_all() -> None:
    for thing in list(_open):
        try:
            thing.close()
        except Usage:
            pass  # It was closed before, or belongs to the process from which this one was forked.
