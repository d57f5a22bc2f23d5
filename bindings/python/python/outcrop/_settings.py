"""Keyword arguments as the text that the core understands."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping
from typing import Any

from .errors import Usage

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
