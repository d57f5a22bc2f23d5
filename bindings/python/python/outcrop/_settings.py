"""Keyword arguments as the text that the core understands."""

from __future__ import annotations

import inspect
import json
import operator
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from .errors import Usage


def text(known: type, settings: Mapping[str, object]) -> str:
    """Settings as JSON. Those that are None are left out."""
    texts = []
    for key, value in settings.items():
        if value is None:
            continue
        kind = known.__annotations__.get(key)
        if getattr(kind, "__forward_arg__", kind) == "bool | None" and not isinstance(value, (bool, np.bool_)):
            raise Usage(f"{key} is {value!r}; write True or False")
        try:
            texts.append(f"{json.dumps(key)}: {json.dumps(value, default=_plain, allow_nan=False)}")
        except TypeError as error:
            raise Usage(f"{key} is {value!r}, which is neither text, number, path nor a list or dictionary of them") from error
        except (ValueError, RecursionError) as error:
            raise Usage(f"{key} is {value!r}; numbers must be finite, and lists and dictionaries not contain themselves") from error
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
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (set, frozenset)):
        raise TypeError("a set has no order")
    for number in (operator.index, float):
        try:
            return number(value)
        except (TypeError, ValueError):
            pass
    return list(value)
