"""Checkpoints of pyadjoint on a tape.

    outcrop.adjoint.enable(get_working_tape(), ndarray, host="2 GiB", dir="scratch")
    get_working_tape().enable_checkpointing(SingleDiskStorageSchedule())

Where a schedule says disk, values of the given types go to an Outcrop tape instead of memory, sink from there to its directories,
and come back before they are used.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy
from pyadjoint import Tape as AdjointTape
from pyadjoint import get_working_tape
from pyadjoint.tape import TapePackageData

from . import OutcropError, Tape, Usage

__all__ = ["PackageData", "Snapshot", "enable", "register"]

NAME = "outcrop"
_registered: set[type] = set()


class Snapshot:
    """A value on the tape. It is removed when nothing refers to it any more."""

    def __init__(self, tape: Tape, key: int) -> None:
        self._tape = tape
        self._key = key

    def array(self) -> numpy.ndarray:
        """The values, in place, to be read."""
        array: numpy.ndarray = self._tape.get(self._key)
        return array

    def __del__(self) -> None:
        # In a forked child there is nothing to remove.
        with suppress(OutcropError):
            if not self._tape.closed:
                self._tape.discard(self._key)


class PackageData(TapePackageData):
    """What pyadjoint's tape carries along: the Outcrop tape, and whether values go there at the moment."""

    def __init__(self, **tape: Any) -> None:
        # Adjoints go backwards, so what was stored last is read first, more or less.
        self.tape = Tape(**{"order": "reverse", **tape})
        self.is_active = False
        self._keys = itertools.count()

    def save(self, array: numpy.ndarray) -> Snapshot:
        """Puts a copy of the array on the tape."""
        key = next(self._keys)
        self.tape.save(key, array)
        return Snapshot(self.tape, key)

    def continue_checkpointing(self) -> None:
        """From here on values go to the tape."""
        self.is_active = True

    def pause_checkpointing(self) -> None:
        """From here on values stay where they are."""
        self.is_active = False

    def clear(self) -> None:
        """Nothing to do: snapshots are removed with what refers to them."""

    def reset(self) -> None:
        """Nothing to do: snapshots are removed with what refers to them."""

    def checkpoint(self) -> bool:
        """The state, which is not much: snapshots do not change."""
        return self.is_active

    def restore_from_checkpoint(self, state: bool) -> None:
        """Goes back to such a state."""
        self.is_active = state

    def copy(self) -> PackageData:
        """The same, for a copy of pyadjoint's tape: both refer to the same snapshots."""
        return self


def enable(tape: AdjointTape, *types: type, **options: Any) -> PackageData:
    """Keeps what a schedule of this tape stores on disk, of these types, on an Outcrop tape with these options. Types that are no
    arrays have to be registered first."""
    for kind in types:
        if kind not in _registered:
            register(kind)
    package = PackageData(**options)
    tape._package_data[NAME] = package
    return package


def register(
    kind: Any,
    read: Callable[[Any], numpy.ndarray] = numpy.asarray,
    write: Callable[[Any, numpy.ndarray], Any] = lambda like, array: array.view(type(like)),
) -> None:
    """Teaches an overloaded type to use a tape: `read(value)` gives its values as an array, `write(like, array)` makes a value
    like another one from them. With a tape of pyadjoint for which no Outcrop tape is enabled, it does what it did."""
    if kind in _registered:
        raise Usage(f"{kind.__name__} is registered already")
    _registered.add(kind)
    create_before, restore_before = kind._ad_create_checkpoint, kind._ad_restore_at_checkpoint

    def create(self: Any) -> Any:
        package = get_working_tape()._package_data.get(NAME)
        if package is None or not package.is_active:
            return create_before(self)
        return package.save(read(self))

    def restore(self: Any, checkpoint: Any) -> Any:
        if isinstance(checkpoint, Snapshot):
            return write(self, checkpoint.array())
        return restore_before(self, checkpoint)

    kind._ad_create_checkpoint = create
    kind._ad_restore_at_checkpoint = restore
