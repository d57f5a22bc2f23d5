"""Keyword arguments as the text that the core understands."""

from __future__ import annotations

import inspect
import json
import operator
import os
from collections.abc import Mapping
from typing import Any

from .errors import Usage


def text(settings: Mapping[str, object]) -> str:
    """Settings as JSON. Those that are None are left out."""
    texts = []
    for key, value in settings.items():
        if value is None:
            continue
        try:
            texts.append(f"{json.dumps(key)}: {json.dumps(value, default=_plain, allow_nan=False)}")
        except (TypeError, ValueError) as error:
            raise Usage(f"{key} is {value!r}, which is neither text, number, path nor a list or dictionary of them") from error
    return f"{{{', '.join(texts)}}}"


def signature(settings: type, *others: inspect.Parameter) -> inspect.Signature:
    """What a class can be told, for `help` and editors."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    names = settings.__annotations__.items()
    parameters = [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in names]
    return inspect.Signature([*parameters, *others])


def _plain(value: Any) -> object:
    """Paths as texts, numbers of NumPy as numbers, ranges and other sequences as lists."""
    if isinstance(value, (os.PathLike, bytes)):
        return os.fsdecode(value)
    if isinstance(value, (set, frozenset)):
        raise TypeError("a set has no order")
    for number in (operator.index, float):
        try:
            return number(value)
        except (TypeError, ValueError):
            pass
    return list(value)
