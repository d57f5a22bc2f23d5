"""The store: numbered versions of a program's state that survive it."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import logging
import math
import pickle
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _outcrop, _settings
from ._arrays import LIST, NUMBERS, Array, Box, as_array, as_box, dtype_of, flat, is_array, unboxed
from ._opened import Opened
from .errors import Missing, OutcropError, Usage, WrongType
from .settings import Path, StoreSettings

if TYPE_CHECKING:
    from typing_extensions import Unpack

_log = logging.getLogger("outcrop")

# The region in which versions of format 1 say what the others are.
_ABOUT = "outcrop.python"

# Values of a version that follow each other are read together, up to so many bytes.
_GROUP_BYTES_MAX = 1 << 20

# What pickled values and texts are made of.
_PICKLE = "pickle"
_TEXT = "text"

# What the core has names for.
_PLAIN = {np.dtype(code) for code in NUMBERS.values()}

# Numbers that are saved as such.
_NUMBERS = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}


class Store(Opened, _outcrop.Store):
    """Keeps checkpoints in host memory and directories. A session is one series of versions in it.

        with outcrop.Store(dir="checkpoints", keep_last=3) as store:
            session = store.session("run")

    dir:    a directory, or several, fastest first. Each is a path, or {"path": ..., "limit": "2 TiB"}. Needed.
    host:   how much host memory, through which everything passes. Default: "256 MiB".
    ranks:  {"dir": ..., "rank": ..., "count": ...} for a run of several processes; all of them then make the same calls.
    comm:   a communicator of mpi4py, instead of `ranks`: its processes save together. Open the store after MPI was initialised.
    All others are listed in `outcrop.settings.StoreSettings` and in docs/settings.md.

    allow_pickle:   whether values that are neither arrays, numbers nor texts may be pickled, and what was pickled be read.
            Default: True. To read a pickle is to run what it says.

    A variable such as OUTCROP_HOST overrides a setting. Every thread may use a store. `name in store`, `len(store)` and
    iteration are about the sessions that its directories have.
    """

    __signature__ = _settings.signature(
        StoreSettings,
        inspect.Parameter("comm", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="mpi4py.MPI.Intracomm | None"),
        inspect.Parameter("allow_pickle", inspect.Parameter.KEYWORD_ONLY, default=True, annotation="bool"),
    )

    _sessions: weakref.WeakSet[Session]
    _allow_pickle: bool

    def __new__(cls, *, comm: Any = None, allow_pickle: bool = True, **settings: Unpack[StoreSettings]) -> Store:
        if comm is not None:
            if settings.get("ranks") is not None:
                raise Usage("comm says who the ranks are; leave ranks out, or give ranks={'mpi': comm.py2f(), 'dir': ...} alone")
            if not callable(getattr(comm, "py2f", None)):
                raise Usage(f"comm is {comm!r}; give a communicator of mpi4py, such as MPI.COMM_WORLD")
            settings["ranks"] = {"mpi": comm.py2f()}
        store = super().__new__(cls, _settings.text(StoreSettings, settings))
        store._sessions = weakref.WeakSet()
        store._allow_pickle = allow_pickle
        return store._close_at_exit()

    def session(self, name: str) -> Session:
        """Opens the series of versions called `name`. With several ranks, all of them call it, in the same order."""
        return Session(self, name)

    def close(self) -> None:
        """Closes its sessions, which waits until everything is durable, and ends the store. An error if some version has not
        reached a directory. A second time, it does nothing.
        """
        failures = []
        for session in list(self._sessions):
            try:
                session.close()
            except OutcropError as error:
                failures.append(error)
        self._close()
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise type(failures[0])("; ".join(map(str, failures))) from failures[0]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names()))

    def __len__(self) -> int:
        return len(self._names())

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        if self.closed:
            return "<outcrop.Store, closed>"
        directories = ", ".join(layer["name"] for layer in self.stats()["layers"][1:])
        return f"<outcrop.Store, {directories}>"


class Session(Opened, _outcrop.Session):
    """A series of versions in a store, of which each is complete or absent in each directory. Made by `Store.session`.

    Every thread may use it. It goes on when its store is collected; closing the store closes it. It is a mapping from numbers to
    versions: `session[5]`, `5 in session`, `len(session)`.
    """

    _name: str
    _allow_pickle: bool
    _known: tuple[str, ...]

    def __new__(cls, store: Store, name: str) -> Session:
        if not isinstance(store, Store):
            raise WrongType(f"{store!r} is a {type(store).__name__}, and must be a store; call store.session({name!r})")
        session = super().__new__(cls, store, name)
        session._name = name
        session._allow_pickle = store._allow_pickle
        session._known = ()
        store._sessions.add(session)
        return session._close_at_exit()

    @property
    def name(self) -> str:
        """What the series is called."""
        return self._name

    def save(self, version: int, /, **values: Any) -> None:
        """Saves values as a version, which is higher than all before. Returns when the program may change them again.

        Arrays, and tensors of other libraries, become regions with their shape and dtype; numbers and texts are saved as such,
        and everything else is pickled. An array that is a part of a global one is given as `outcrop.boxed(array, shape, offset)`.
        """
        self._save(version, [(name, *_saved(name, value, self._allow_pickle)) for name, value in values.items()])
        self._known = tuple(values)

    def latest(self) -> Version | None:
        """The newest version that can be restored; None if there is none. With several ranks, all of them call it."""
        number = self._latest()
        return None if number is None else Version(self, number)

    def version(self, number: int, /) -> Version:
        """The version of this number."""
        return Version(self, number)

    def mark_dirty(self, name: str, start: int = 0, stop: int | None = None) -> None:
        """Says that bytes of a value have changed although this program has not written them: a device or a network card did.
        All of them where nothing is said.
        """
        if name not in self._known:
            raise Missing(f"session {self.name} has no {name} that changes could be found in; it has {', '.join(self._known)}")
        self._mark_dirty(name, start, stop)

    def restore(self, **targets: Any) -> Version | None:
        """Restores arrays in place from the newest version that is whole, passing over damaged ones, and returns that version; None
        if there is none at all. Each array must have the shape and dtype that was saved, unless it is given as
        `outcrop.boxed(array, shape, offset)`: then it gets that part of the global array, whoever has saved it. With several
        ranks, all of them call it.

        All or nothing: everything that the version has is compared with its checksums before an array is written to. What was
        passed over is in `skipped` of the version that is returned, and logged. The program goes on from that version: the next
        save may have the number of one that was passed over, and replaces it.
        """
        arrays, boxes = _arrays_and_boxes(targets)
        if any(array.dtype not in _PLAIN for array in arrays.values()):
            newest = self.latest()
            if newest is not None and newest._is_old:
                # Format 1 has no names for such elements.
                return newest.into(**targets)
        flats = {name: array if _is_flat(array) else np.empty_like(array, order="C") for name, array in arrays.items()}
        restored = self._restore_latest([(name, None, array, boxes[name]) for name, array in flats.items()])
        if restored is None:
            return None
        version = Version(self, restored[0])
        self._known = tuple(version)
        version._passed_over(restored[1])
        for name, array in arrays.items():
            saved = flats[name]
            if boxes[name] is None:
                saved = saved.ravel(order="K").reshape(array.shape, order=version._saved[name].order)
            if not np.shares_memory(saved, array) or saved.strides != array.strides:
                array[...] = saved.copy() if np.shares_memory(saved, array) else saved
        return version

    def get(self, number: int, default: Any = None, /) -> Any:
        """The version of this number, or `default` if there is none."""
        return Version(self, number) if number in self else default

    def __getitem__(self, number: int) -> Version:
        return self.version(number)

    def __iter__(self) -> Iterator[int]:
        return iter(self.versions)

    def __len__(self) -> int:
        return len(self.versions)

    def __contains__(self, number: object) -> bool:
        return number in self.versions

    def __bool__(self) -> bool:
        return True

    def __del__(self) -> None:
        if self.closed:
            return
        failure = None
        try:
            self.close()
        except Usage:
            return  # It belongs to the process from which this one was forked.
        except OutcropError as error:
            failure = error
        warnings.warn(f"session {self.name!r} was not closed; close it, or use a with block", ResourceWarning, stacklevel=2)
        if failure is not None:
            raise failure

    def __repr__(self) -> str:
        if self.closed:
            return f"<outcrop.Session {self.name!r}, closed>"
        versions = self.versions
        newest = f", newest {versions[-1]}" if versions else ""
        return f"<outcrop.Session {self.name!r}, {len(versions)} versions{newest}>"


def versions(name: str, dir: Path) -> list[int]:
    """The numbers of the complete versions of a series in a directory, ascending, also while a program goes on with it."""
    try:
        return _outcrop._versions(dir, name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def read(name: str, dir: Path, version: int | None = None, rank: int = 0, *, allow_pickle: bool = True) -> Version:
    """A version of a series in a directory, or the newest, to be looked at, also while a program goes on with it. What was pickled
    can only be read with `allow_pickle`.
    """
    archive = _outcrop.Archive(dir, name, version, rank)
    return Version(archive, archive.number, allow_pickle)


@dataclass(frozen=True)
class SavedRegion:
    """What is known of a value that was saved.

    element: what all languages call its elements, such as "f64".
    dtype:   the same in NumPy's words.
    shape:   its dimensions; () for a number.
    order:   "C" or "F": the last or the first index runs fastest in memory.
    box:     which part of a global array it is; None if it was not said to be one.
    """

    element: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Any
    box: Box | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_pickled(self) -> bool:
        return self.element == _PICKLE

    @property
    def is_number(self) -> bool:
        return self.shape == () and self.element in NUMBERS


class Version(Mapping[str, Any]):
    """What was saved at one time: a mapping from names to values.

    To read a value that is no array, number or text is to unpickle it: only do so if you trust who wrote the store's files.
    """

    def __init__(self, series: Session | _outcrop.Archive, number: int, allow_pickle: bool = True) -> None:
        self._series = series
        self._allow_pickle = series._allow_pickle if isinstance(series, Session) else allow_pickle
        self.number = number
        self.skipped: tuple[str, ...] = ()
        """What was passed over when it was restored: newer versions, and copies of it, that are damaged, and why."""
        self._saved = {
            name: SavedRegion(element, dtype_of(element), tuple(shape), order, as_box(box))
            for name, element, shape, order, box in series._regions(number)
        }
        self._is_old = _ABOUT in self._saved
        if self._is_old:
            self._read_about()
        self._groups = _grouped(self._saved)
        # The group that was read last, and its values; none of them if something in it is damaged.
        self._last: tuple[list[str], dict[str, Array]] = ([], {})

    def _read_about(self) -> None:
        """A version of format 1: what its values are is said by one of its regions."""
        (about_bytes,) = self._read_all([_ABOUT])
        about = json.loads(about_bytes.tobytes())
        for name, what in about.items():
            saved = self._saved[name]
            if "pickle" in what:
                self._saved[name] = dataclasses.replace(saved, element=_PICKLE)
            else:
                dtype = np.lib.format.descr_to_dtype(_tuples(what["dtype"]))
                self._saved[name] = SavedRegion(saved.element, dtype, tuple(what["shape"]), what["order"])
        del self._saved[_ABOUT]

    @property
    def names(self) -> list[str]:
        """The names of its values."""
        return list(self)

    @property
    def regions(self) -> dict[str, SavedRegion]:
        """What its values are, by name, without reading them."""
        return dict(self._saved)

    def into(self, **targets: Any) -> Version:
        """Restores arrays in place, and returns the version. Each must have the shape and dtype that was saved, unless it is given
        as `outcrop.boxed(array, shape, offset)`: then it gets that part of the global array, whoever has saved it.

        All or nothing: everything that the version has is compared with its checksums before an array is written to. The session
        goes on from here: what is saved next is compared with this, and replaces the versions above if it has the number of one
        of them. With several ranks, all of them call it.
        """
        arrays, boxes = _arrays_and_boxes(targets)
        flats = {}
        for name, array in arrays.items():
            is_part = boxes[name] is not None and isinstance(self._series, Session)
            self._check(name, array, is_part)
            order = self._saved[name].order
            is_flat = array.flags.c_contiguous if order == "C" else array.flags.f_contiguous
            flats[name] = array if is_flat else np.empty(array.shape, array.dtype, order)
        values = [self._value(name, array, boxes[name]) for name, array in flats.items()]
        if isinstance(self._series, Session):
            self._passed_over(self._series._restore(self.number, values)[1])
            self._series._known = tuple(self)
        else:
            self._series._restore(self.number, values)
        for name, array in arrays.items():
            if flats[name] is not array:
                array[...] = flats[name]
        return self

    def __getitem__(self, name: str) -> Any:
        self._check_name(name)
        saved, value = self._saved[name], self._read(name)
        if saved.is_pickled and not self._allow_pickle:
            raise Usage(f"{name} was pickled; to read it is to run what it says, and needs allow_pickle=True")
        if saved.is_pickled:
            return pickle.loads(value.data)
        if saved.element == _TEXT:
            return value.tobytes().decode()
        return value.item() if saved.is_number else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._saved)

    def __len__(self) -> int:
        return len(self._saved)

    def __contains__(self, name: object) -> bool:
        return name in self._saved

    def __repr__(self) -> str:
        return f"<outcrop.Version {self.number} of {self._series.name!r}: {', '.join(self)}>"

    def _passed_over(self, skipped: list[str]) -> None:
        self.skipped = tuple(skipped)
        for reason in skipped:
            _log.warning("%s was restored from %s, and this was passed over: %s", self._series.name, self.number, reason)

    def _check_name(self, name: str) -> None:
        if name not in self:
            raise Missing(f"version {self.number} of {self._series.name} has no {name}; it has {', '.join(self)}")

    def _check(self, name: str, array: Array, is_part: bool = False) -> None:
        """Whether a value fits an array. The core knows whether a part of a global array does."""
        self._check_name(name)
        saved = self._saved[name]
        if saved.is_pickled or saved.element == _TEXT:
            raise Usage(f"{name} is no array and cannot be restored in place; read version[{name!r}]")
        if array.dtype != saved.dtype or not (is_part or array.shape == saved.shape):
            raise Usage(
                f"{name} was saved as {saved.dtype} of shape {saved.shape}, "
                f"and is to be restored into {array.dtype} of shape {array.shape}"
            )

    def _value(self, name: str, array: Array, box: Box | None = None) -> tuple[str, str | None, Array, Box | None]:
        """An array that a value is to be put into, as the core knows that value."""
        saved = self._saved[name]
        if not self._is_old:
            return name, saved.element, array, box
        # All that format 1 knew of an array was its bytes, or how many numbers there were.
        flat = array.ravel(order="K")
        if dtype_of(saved.element) != saved.dtype:
            flat = flat.view(np.uint8)
        return name, "u8" if saved.is_pickled else saved.element, flat, None

    def _read(self, name: str) -> Array:
        # Each read looks at all regions: if every value were read alone, the time would be quadratic.
        group, (read, values) = self._groups[name], self._last
        if read is not group and len(group) > 1:
            values = {}
            with contextlib.suppress(OutcropError):
                values = dict(zip(group, self._read_all(group), strict=True))
            self._last = (group, values)
        if name in values:
            return values[name].copy(order="K")
        # It is large, or something in its group is damaged.
        (array,) = self._read_all([name])
        return array

    def _read_all(self, names: Iterable[str]) -> list[Array]:
        saved = {name: self._saved[name] for name in names}
        arrays = {name: np.empty(region.shape, region.dtype, region.order) for name, region in saved.items()}
        boxes = {name: region.box for name, region in saved.items()}
        # Where a part of a list begins is not known if the parts of other ranks are not in sight.
        boxes = {name: None if box is None or LIST in box.shape else box for name, box in boxes.items()}
        self._series._read(self.number, [self._value(name, array, boxes[name]) for name, array in arrays.items()])
        return list(arrays.values())


def _grouped(saved: Mapping[str, SavedRegion]) -> dict[str, list[str]]:
    """The values that each value is read together with, by name."""
    groups, group, left = {}, list[str](), 0
    for name, region in saved.items():
        if region.nbytes > left:
            group, left = [], _GROUP_BYTES_MAX
        left -= region.nbytes
        group.append(name)
        groups[name] = group
    return groups


def _saved(name: str, value: Any, allow_pickle: bool) -> tuple[str | None, Array, Box | None]:
    """What a value is made of, if that is not the dtype of its array, the array, and its box."""
    value, box = unboxed(value)
    if name == _ABOUT:
        raise Usage(f"{_ABOUT} is where older versions keep what they know about values; choose another name")
    if is_array(value):
        return None, flat(value), box
    if box is not None:
        raise Usage(f"{name} is a {type(value).__name__}, and only an array can be a part of a global one")
    if type(value) in _NUMBERS:
        with contextlib.suppress(OverflowError):
            return None, np.array(value, _NUMBERS[type(value)]), None
    if type(value) is str:
        with contextlib.suppress(UnicodeEncodeError):
            return _TEXT, np.frombuffer(value.encode(), np.uint8), None
    kind = type(value).__name__
    if not allow_pickle:
        raise Usage(f"{name} is a {kind}, which can only be saved as a pickle; that needs allow_pickle=True")
    try:
        return _PICKLE, np.frombuffer(pickle.dumps(value), np.uint8), None
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise Usage(f"{name} is a {kind}, and cannot be pickled: {error}") from error


def _arrays_and_boxes(targets: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, Box | None]]:
    """What is to be written to, by name, and which parts of global arrays these are."""
    pairs = {name: unboxed(target) for name, target in targets.items()}
    arrays = {name: _target(name, target) for name, (target, _) in pairs.items()}
    return arrays, {name: box for name, (_, box) in pairs.items()}


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
