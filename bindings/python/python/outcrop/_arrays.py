"""What can be saved as an array, and in which form."""

from __future__ import annotations

import array
import ast
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from . import _outcrop
from .errors import Usage

Array = np.ndarray[Any, Any]

# What the core calls numbers that all languages know.
NUMBERS = {"bool": "?", "c64": "c8", "c128": "c16", "f16": "f2", "f32": "f4", "f64": "f8"}
NUMBERS |= {f"{kind}{8 * size}": f"{kind}{size}" for kind in "ui" for size in (1, 2, 4, 8)}

# What the name of other elements begins with; NumPy's description of a dtype follows.
_DESCRIBED = "numpy:"


class Box(NamedTuple):
    """The part of a global array that an array is: the shape of the whole, and the index of the part's first element there."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Boxed:
    """An array that is a part of a global one. Made by `boxed`."""

    array: Any
    box: Box


def boxed(array: Any, shape: Sequence[SupportsIndex], offset: Sequence[SupportsIndex]) -> Boxed:
    """An array as the part of a global array of this shape that begins there at `offset`, to be saved or restored:

        session.save(step, field=outcrop.boxed(planes, (nz, ny, nx), (first, 0, 0)))
    """
    try:
        box = Box(tuple(map(operator.index, shape)), tuple(map(operator.index, offset)))
    except TypeError as error:
        raise Usage(f"the shape and the offset of a box are whole numbers, one for each dimension: {error}") from error
    if min((*box.shape, *box.offset), default=0) < 0:
        raise Usage(f"the shape and the offset of a box are whole numbers from 0 upwards, and not {box.shape} and {box.offset}")
    return Boxed(array, box)


def box_of(array: Any) -> Box | None:
    """Which part of a global array an array of a tape was saved as; None if it was not said to be one."""
    while isinstance(array, np.ndarray):
        array = array.base
    return as_box(array._box) if isinstance(array, _outcrop.Slot) else None


def as_box(found: tuple[list[int], list[int]] | None) -> Box | None:
    """A box, as the core knows it."""
    return None if found is None else Box(tuple(found[0]), tuple(found[1]))


def unboxed(value: Any) -> tuple[Any, Box | None]:
    """A value, and its box if it has one."""
    return (value.array, value.box) if isinstance(value, Boxed) else (value, None)


def is_array(value: object) -> bool:
    """Whether it is an array, or a tensor of another library: no number, text, list or bytes."""
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject and not isinstance(value, np.ma.MaskedArray)
    return hasattr(value, "__dlpack__") or isinstance(value, (memoryview, array.array))


def as_array(value: Any) -> Array:
    """A value as an array that shares its memory, if it can; else a copy."""
    if isinstance(value, np.ndarray):
        return value
    try:
        if hasattr(value, "detach") and hasattr(value, "numpy"):
            # A tensor of PyTorch; one that a gradient is computed for shares its memory only when it is detached.
            tensor: Array = value.detach().numpy()
            return tensor
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
    except (TypeError, RuntimeError, BufferError) as error:
        kind = type(value).__name__
        raise Usage(
            f"this {kind} cannot be seen as a NumPy array ({error}); "
            "move it to host memory, and view it as a dtype that NumPy knows"
        ) from error
    try:
        return np.asarray(memoryview(value))
    except TypeError:
        pass
    try:
        return np.asarray(value)
    except ValueError as error:
        raise Usage(f"this {type(value).__name__} cannot be seen as a NumPy array: {error}") from error


def flat(value: Any) -> Array:
    """A value as an array whose bytes lie in one piece; a copy if they do not."""
    array = as_array(value)
    if isinstance(array, np.ma.MaskedArray):
        raise Usage("a masked array is two arrays: save its data and its mask, by name")
    if array.dtype.hasobject:
        raise Usage(f"this {type(value).__name__} holds Python objects; what is saved as an array must hold numbers")
    if array.flags.c_contiguous or array.flags.f_contiguous:
        return array
    return np.ascontiguousarray(array)


def described(dtype: np.dtype[Any]) -> str:
    """What the core calls elements that only NumPy knows: structures, times, texts, the other byte order."""
    return _DESCRIBED + repr(np.lib.format.dtype_to_descr(dtype))


def dtype_of(element: str) -> np.dtype[Any]:
    """The dtype of such elements; bytes where NumPy does not know them."""
    if element.startswith(_DESCRIBED):
        return np.lib.format.descr_to_dtype(ast.literal_eval(element[len(_DESCRIBED) :]))
    return np.dtype(NUMBERS.get(element, "u1"))
