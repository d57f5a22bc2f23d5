"""The store: numbered versions of a program's state that survive it."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from . import _outcrop, _settings
from ._arrays import Array, as_array, flat, is_array
from .errors import Missing, Usage
from .tape import Dir, Path

# The region that says what the others are.
_ABOUT = "outcrop.python"

# What the core calls elements, for versions that another language has saved.
_DTYPES = {"bool": "?", "c64": "c8", "c128": "c16", "f16": "f2", "f32": "f4", "f64": "f8"}
_DTYPES |= {f"{kind}{8 * size}": f"{kind}{size}" for kind in "ui" for size in (1, 2, 4, 8)}


class Store(_outcrop.Session):
    """A series of versions, called `name`, of which each is complete or absent in each directory.

        Store("run", dir="checkpoints", keep_last=3)

    dir:    a directory, or several, fastest first. Each is a path, or {"path": ..., "limit": "2 TiB"}. Needed.
    host:   how much host memory, through which everything passes; "256 MiB" where nothing is said.
    ranks:  {"dir": ..., "rank": ..., "count": ...} for a run of several processes; all of them then make the same calls.
    keep_last, keep_every, keep_seconds, interval, failures_seconds, compression, dedup, live, block, hash, certain, incremental,
    tracking, in_flight, chain_max, pin, threads: see docs/python.md.

    A variable such as OUTCROP_HOST overrides a setting. Every thread may use a store.
    """

    _name: str

    def __new__(
        cls,
        name: str,
        *,
        dir: Dir | Iterable[Dir] | None = None,
        host: str | int | None = None,
        ranks: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Store:
        settings = {"dir": dir, "host": host, "ranks": ranks, **settings}
        store = super().__new__(cls, name, _settings.text(settings))
        store._name = name
        _settings.close_at_exit(store)
        return store

    @property
    def name(self) -> str:
        """What the series is called."""
        return self._name

    def save(self, version: int, /, **values: Any) -> None:
        """Saves values as a version, which is higher than all before. Returns when the program may change them again.

        Arrays, and tensors of other libraries, become regions of their own; everything else is pickled.
        """
        about: dict[str, Any] = {}
        regions = []
        for name, value in values.items():
            if name == _ABOUT:
                raise Usage(f"{_ABOUT} is where the store keeps what it knows about values; choose another name")
            if is_array(value):
                array = flat(value)
                order = "C" if array.flags.c_contiguous else "F"
                about[name] = {"dtype": np.lib.format.dtype_to_descr(array.dtype), "shape": array.shape, "order": order}
            else:
                array = np.frombuffer(pickle.dumps(value), np.uint8)
                about[name] = {"pickle": True}
            regions.append((name, array))
        regions.append((_ABOUT, np.frombuffer(json.dumps(about).encode(), np.uint8)))
        self._save(version, regions)

    def latest(self) -> Version | None:
        """The newest version that can be restored; None if there is none. With several ranks, all of them call it."""
        number = self._latest()
        return None if number is None else Version(self, number)

    def version(self, number: int, /) -> Version:
        """The version of this number."""
        return Version(self, number)

    def restore(self, **targets: Any) -> Version | None:
        """Restores arrays in place from the newest version that is whole, passing over damaged ones, and returns that version; None
        if there is none at all. Each array must have the shape and dtype that was saved. With several ranks, all of them call it.
        """
        arrays = {name: _target(name, target) for name, target in targets.items()}
        flats = {name: array if _is_flat(array) else np.empty_like(array, order="C") for name, array in arrays.items()}
        number = self._restore_latest(list(flats.items()))
        if number is None:
            return None
        version = Version(self, number)
        for name, array in arrays.items():
            version._check(name, array)
            saved = flats[name].ravel(order="K").reshape(array.shape, order=version._order(name))
            if not np.shares_memory(saved, array) or saved.strides != array.strides:
                array[...] = saved.copy() if np.shares_memory(saved, array) else saved
        return version

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.closed:
            self.close()

    def __repr__(self) -> str:
        if self.closed:
            return f"<outcrop.Store {self.name!r}, closed>"
        versions = self.versions
        newest = f", newest {versions[-1]}" if versions else ""
        return f"<outcrop.Store {self.name!r}, {len(versions)} versions{newest}>"


def versions(name: str, dir: Path) -> list[int]:
    """The numbers of the complete versions of a series in a directory, ascending, also while a program goes on with it."""
    return _outcrop._versions(dir, name) if os.path.isdir(dir) else []


def read(name: str, dir: Path, version: int | None = None, rank: int = 0) -> Version:
    """A version of a series in a directory, or the newest, to be looked at, also while a program goes on with it."""
    archive = _outcrop.Archive(dir, name, version, rank)
    return Version(archive, archive.number)


class Version(Mapping[str, Any]):
    """What was saved at one time: a mapping from names to values.

    To read a value that is no array is to unpickle it: only do so if you trust who wrote the store's files.
    """

    def __init__(self, store: Store | _outcrop.Archive, number: int) -> None:
        self._store = store
        self.number = number
        self._sizes = {name: (element, size) for name, element, size in store._regions(number)}
        self._about: dict[str, Any] = {}
        if _ABOUT in self._sizes:
            self._about = json.loads(self._read(_ABOUT).tobytes())

    @property
    def names(self) -> list[str]:
        """The names of its values."""
        return list(self)

    def into(self, **targets: Any) -> Version:
        """Restores arrays in place, and returns the version. Each must have the shape and dtype that was saved.

        The store goes on from here: what is saved next is compared with this. With several ranks, all of them call it.
        """
        arrays, flats = [], []
        for name, target in targets.items():
            array = _target(name, target)
            self._check(name, array)
            order = self._order(name)
            is_flat = array.flags.c_contiguous if order == "C" else array.flags.f_contiguous
            arrays.append(array)
            flats.append((name, array if is_flat else np.empty(array.shape, array.dtype, order)))
        if isinstance(self._store, Store):
            self._store._restore(self.number, flats)
        else:
            self._store._read(self.number, flats)
        for array, (_, copy) in zip(arrays, flats):
            if copy is not array:
                array[...] = copy
        return self

    def __getitem__(self, name: str) -> Any:
        self._check_name(name)
        value = self._read(name)
        return pickle.loads(value.data) if self._is_pickled(name) else value

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._sizes if name != _ABOUT)

    def __len__(self) -> int:
        return len(self._sizes) - (_ABOUT in self._sizes)

    def __contains__(self, name: object) -> bool:
        return name in self._sizes and name != _ABOUT

    def __repr__(self) -> str:
        return f"<outcrop.Version {self.number} of {self._store.name!r}: {', '.join(self)}>"

    def _is_pickled(self, name: str) -> bool:
        return "pickle" in self._about.get(name, ())

    def _order(self, name: str) -> Any:
        return self._about.get(name, {}).get("order", "C")

    def _dtype_and_shape(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Of the array that a region holds."""
        about = self._about.get(name, {})
        if "dtype" in about:
            return np.lib.format.descr_to_dtype(_tuples(about["dtype"])), tuple(about["shape"])
        element, size = self._sizes[name]
        dtype = np.dtype(_DTYPES.get(element, "u1"))
        return dtype, (size // dtype.itemsize,)

    def _check_name(self, name: str) -> None:
        if name not in self:
            raise Missing(f"version {self.number} of {self._store.name} has no {name}; it has {', '.join(self)}")

    def _check(self, name: str, array: Array) -> None:
        """Whether a value fits an array."""
        self._check_name(name)
        if self._is_pickled(name):
            raise Usage(f"{name} is no array and cannot be restored in place; read version[{name!r}]")
        dtype, shape = self._dtype_and_shape(name)
        if (array.dtype, array.shape) != (dtype, shape):
            raise Usage(
                f"{name} was saved as {dtype} of shape {shape}, and is to be restored into {array.dtype} of shape {array.shape}"
            )

    def _read(self, name: str) -> Array:
        dtype, shape = self._dtype_and_shape(name)
        array = np.empty(shape, dtype, self._order(name))
        self._store._read(self.number, [(name, array)])
        return array


def _target(name: str, target: Any) -> Array:
    """What is to be written to."""
    if not is_array(target):
        raise Usage(f"{name} cannot be restored into a {type(target).__name__}; give an array")
    array = as_array(target)
    if not array.flags.writeable:
        raise Usage(f"the array for {name} is read-only; give one that can be written to")
    return array


def _is_flat(array: Array) -> bool:
    return array.flags.c_contiguous or array.flags.f_contiguous


def _tuples(descr: Any) -> Any:
    """A description of a dtype, with the tuples that JSON has made lists of."""
    if isinstance(descr, str):
        return descr
    return [(field[0], _tuples(field[1]), *map(tuple, field[2:])) for field in descr]
