"""What can be saved as an array, and in which form."""

from __future__ import annotations

import array
import ast
import inspect
import operator
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from . import _outcrop
from .errors import Usage, WrongType

Array = np.ndarray[Any, Any]

# What the core calls numbers that all languages know.
NUMBERS = {"bool": "?", "c64": "c8", "c128": "c16", "f16": "f2", "f32": "f4", "f64": "f8"}
NUMBERS |= {f"{kind}{8 * size}": f"{kind}{size}" for kind in "ui" for size in (1, 2, 4, 8)}

# The length of a list in a box: no rank knows it when it saves.
LIST = _outcrop.LIST

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


def listed(array: Any, first: int = 0) -> Boxed:
    """An array as this rank's part of a list, which has the parts of all ranks in the order of the ranks:

        session.save(step, particles=outcrop.listed(particles))

    Its first dimension may differ between ranks; in Fortran's order it is the last one. To restore, `first` is the number of the
    first element that is wanted of the whole list; `regions` of a version says which this rank may take.
    """
    found = as_array(array)
    if found.ndim == 0:
        raise Usage("a list has at least one dimension, and this array has none")
    at = found.ndim - 1 if found.flags.f_contiguous and not found.flags.c_contiguous else 0
    shape, offset = list(found.shape), [0] * found.ndim
    shape[at], offset[at] = LIST, first
    return boxed(array, shape, offset)


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


def buffer(value: Any) -> Array:
    """Something that has bytes of its own, as an array whose bytes lie in one piece."""
    if not isinstance(value, np.ndarray) and not hasattr(value, "__dlpack__"):
        try:
            memoryview(value)
        except TypeError as error:
            raise WrongType(f"{value!r} is a {type(value).__name__}, and must be an array or have a buffer: {error}") from error
    return flat(value)


def described(dtype: np.dtype[Any]) -> str:
    """What the core calls elements that only NumPy knows: structures, times, texts, the other byte order. What would not come back
    as it is now is refused.
    """
    for describe in (_descr, _layout):
        name = _DESCRIBED + repr(describe(dtype))
        try:
            if _is_same(dtype_of(name), dtype):
                return name
        except (TypeError, ValueError, SyntaxError):
            pass
    if _has_metadata(dtype):
        raise Usage(f"{dtype!r} has metadata, which is not kept; view the array with a dtype without")
    raise Usage(f"{dtype!r} cannot be described so that the same dtype would come back; view the array with another one")


def dtype_of(element: str) -> np.dtype[Any]:
    """The dtype of such elements; bytes where NumPy does not know them."""
    if not element.startswith(_DESCRIBED):
        return np.dtype(NUMBERS.get(element, "u1"))
    described = ast.literal_eval(element[len(_DESCRIBED) :])
    return _laid_out(described) if isinstance(described, dict) else np.lib.format.descr_to_dtype(described)


def _descr(dtype: np.dtype[Any]) -> Any:
    """As in files of NumPy: what most structures are described by."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # That metadata is not kept.
            return np.lib.format.dtype_to_descr(dtype)
    except ValueError:
        return None  # Fields overlap, or are out of order.


def _layout(dtype: np.dtype[Any]) -> Any:
    """All that is known of a dtype but its metadata."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return _layout(base), shape
    if dtype.names is None or dtype.fields is None:
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names]
    return {
        "names": list(dtype.names),
        "formats": [_layout(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "titles": [field[2] if len(field) > 2 else None for field in fields],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
    }


def _laid_out(layout: Any) -> np.dtype[Any]:
    """What `_layout` has described. NumPy would align structures inside of aligned ones, too."""
    if isinstance(layout, dict):
        layout = {**layout, "formats": [_laid_out(part) for part in layout["formats"]]}
    elif isinstance(layout, tuple):
        layout = (_laid_out(layout[0]), layout[1])
    found: np.dtype[Any] = np.dtype(layout)
    return found


def _parts(dtype: np.dtype[Any]) -> list[np.dtype[Any]]:
    """What a dtype is made of."""
    fields: Any = dtype.fields or {}
    return [dtype.subdtype[0]] if dtype.subdtype else [fields[name][0] for name in dtype.names or ()]


def _has_metadata(dtype: np.dtype[Any]) -> bool:
    return bool(dtype.metadata) or any(map(_has_metadata, _parts(dtype)))


def _is_same(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Whether two dtypes do not differ in anything, also in what NumPy takes no notice of."""
    if one != other or one.isalignedstruct != other.isalignedstruct or other.metadata:
        return False
    titles = [[dtype.fields[name][2:] for name in dtype.names or ()] if dtype.fields else [] for dtype in (one, other)]
    return titles[0] == titles[1] and all(map(_is_same, _parts(one), _parts(other)))


def names_of(array: Array) -> int:
    """How many references to an array are plain variables of functions that have not returned, or of their modules."""
    count, seen = 0, set()
    frame = sys._getframe().f_back
    while frame is not None:
        code, names = frame.f_code, frame.f_locals
        is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
        if is_function:
            # A variable that closures share is one reference, seen from several functions.
            shared = {*code.co_cellvars, *code.co_freevars}
            count += sum(value is array and name not in shared for name, value in names.items())
        elif id(names) not in seen:
            seen.add(id(names))
            count += sum(value is array for value in names.values())
        if is_function and sys.version_info < (3, 13):
            names.clear()  # A copy, which would keep what it has seen.
        frame = frame.f_back
    return count
