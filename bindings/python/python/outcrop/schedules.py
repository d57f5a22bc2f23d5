"""Runs any schedule of the package `checkpoint_schedules` with its snapshots on a tape.

A schedule says when to store, to recompute and to read. With a known number of steps all of it can be listed before the run, and
so the tape knows exactly which snapshot is read when: what is read soonest is in memory, everything else sinks to the directories
and comes back in time. Whether a schedule says RAM or DISK is its own estimate of costs; here both are the same tape.

    with Executor(Revolve(steps, 10), state, forward, adjoint, host="2 GiB", dir="scratch") as run:
        run.forward()
        run.reverse()
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import singledispatchmethod
from typing import Any

import numpy
from checkpoint_schedules import (
    CheckpointSchedule,
    Copy,
    EndForward,
    EndReverse,
    Forward,
    Move,
    Reverse,
    SingleMemoryStorageSchedule,
    StorageType,
)

from . import Tape

__all__ = ["Executor"]

# Each step can have two snapshots: what the forward needs to start again there, and what the adjoint needs of it.
RESTART, NEEDED = 0, 1

State = numpy.ndarray | Mapping[str, numpy.ndarray]


class Executor:
    """Steps a program forward and back as a schedule of `checkpoint_schedules` says.

    `state` is the array, or the mapping of names to arrays, that the forward changes in place. `forward(step, state)` advances it
    from `step` to `step + 1`. `adjoint(step, past)` goes back over that step; `past` is what `needed(step, state)` had returned
    before it was made: the state itself, if nothing else is said. It can only be read; whoever holds on to it holds its memory.
    All other arguments are those of a `Tape`.
    """

    def __init__(
        self,
        schedule: CheckpointSchedule,
        state: State,
        forward: Callable[[int, Any], Any],
        adjoint: Callable[[int, Any], Any],
        *,
        needed: Callable[[int, Any], Any] | None = None,
        **tape: Any,
    ) -> None:
        self._schedule = schedule
        self._state = state
        self._forward = forward
        self._adjoint = adjoint
        self._needed = needed or (lambda _, state: state)
        # The storages that each snapshot belongs to. It lies on the tape once, and is gone when it belongs to none.
        self._holders: dict[int, set[StorageType]] = defaultdict(set)
        self._step = 0
        self._steps: int | None = schedule.max_n
        self._is_last: Callable[[], bool] = lambda: False
        self._has_ended = False
        if self._steps is None:
            # Adjoints go backwards, so what was stored last is read first, more or less.
            self._actions: Iterator[Any] = iter(schedule)
            self.order: Any = "reverse"
            self._left = None
        else:
            actions = _until_end(schedule)
            self._actions = iter(actions)
            self.order = _reads(actions)
            # How often each snapshot will still be read; some schedules do not say when they need one no more.
            self._left = Counter(self.order)
        self.tape = Tape(**{"order": self.order, **tape})

    def forward(self, steps: int | None = None, *, until: Callable[[], bool] | None = None) -> int:
        """Goes forward to the end, and returns the number of steps: those of the schedule. Where it does not know them, `steps`,
        or the first step after which `until()` is true."""
        if self._schedule.max_n is None and (steps is None) == (until is None):
            raise ValueError("this schedule does not know how many steps there are: give either steps or until")
        if self._schedule.max_n is not None and (steps not in (None, self._schedule.max_n) or until is not None):
            raise ValueError(f"this schedule was made for {self._schedule.max_n} steps: give neither steps nor until")
        if self._has_ended:
            raise RuntimeError("the forward has ended: make another Executor, with another schedule, for another run")
        self._steps = steps if steps is not None else self._schedule.max_n
        self._is_last = until or self._is_last
        self._run(EndForward)
        self._has_ended = True
        return self._step

    def reverse(self) -> None:
        """Goes back to the beginning; again, if the schedule permits it."""
        if not self._has_ended:
            raise RuntimeError("nothing to go back over: call forward() first")
        try:
            self._run(EndReverse)
        except StopIteration:
            raise RuntimeError("the schedule permits no further adjoint") from None

    def close(self) -> None:
        """Gives back memory and files."""
        self.tape.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, end: type) -> None:
        action = None
        while not isinstance(action, end):
            action = next(self._actions)
            self._do(action)

    @singledispatchmethod
    def _do(self, action: Any) -> None:
        raise TypeError(f"unknown action {action}: this checkpoint_schedules is newer than what Outcrop knows")

    @_do.register
    def _(self, action: Forward) -> None:
        end = action.n1 if self._steps is None else min(action.n1, self._steps)
        if action.write_ics:
            self._save(_key(action.n0, RESTART), self._state, action.storage)
        self._step = action.n0
        while self._step < end:
            if action.write_adj_deps:
                self._save(_key(self._step, NEEDED), self._needed(self._step, self._state), action.storage)
            self._forward(self._step, self._state)
            self._step += 1
            if self._steps is None and self._is_last():
                self._steps = end = self._step
        if self._schedule.max_n is None and self._step == self._steps:
            self._schedule.finalize(self._steps)

    @_do.register
    def _(self, action: Reverse) -> None:
        # This schedule permits any number of adjoints, and says each time to clear what the next one needs.
        is_last = action.clear_adj_deps and not isinstance(self._schedule, SingleMemoryStorageSchedule)
        for step in action:
            key = _key(step, NEEDED)
            if StorageType.WORK not in self._holders[key]:
                raise RuntimeError(f"the schedule goes back over step {step} and has not stored or read what that needs")
            if is_last:
                self._holders[key].discard(StorageType.WORK)
            self._adjoint(step, self._read(key))

    @_do.register
    def _(self, action: Copy) -> None:
        self._move(action, is_kept=True)

    @_do.register
    def _(self, action: Move) -> None:
        self._move(action, is_kept=False)

    @_do.register(EndForward)
    @_do.register(EndReverse)
    def _(self, action: Any) -> None:
        pass

    def _move(self, action: Any, is_kept: bool) -> None:
        for kind in (RESTART, NEEDED):
            key = _key(action.n, kind)
            holders = self._holders.get(key, set())
            if action.from_storage not in holders:
                continue
            if not is_kept:
                holders.discard(action.from_storage)
            if action.to_storage == StorageType.WORK and kind == RESTART:
                _copy(self._read(key), self._state)
                self._step = action.n
            else:
                # What the adjoint needs is read from where it lies.
                holders |= {action.to_storage} - {StorageType.NONE}
                self._forget_unless_held(key)

    def _save(self, key: int, state: State, storage: StorageType) -> None:
        if self._left is not None and not self._left[key]:
            return
        if not self._holders[key]:
            if isinstance(state, Mapping):
                self.tape.save(key, **state)
            else:
                self.tape.save(key, state)
        self._holders[key].add(storage)

    def _read(self, key: int) -> Any:
        """The snapshot; for the last time if nobody holds it, or will read it again."""
        if self._left is not None:
            self._left[key] -= 1
            if not self._left[key]:
                self._holders[key].clear()
        if self._holders[key]:
            return self.tape.get(key)
        del self._holders[key]
        return self.tape.take(key)

    def _forget_unless_held(self, key: int) -> None:
        if not self._holders[key]:
            del self._holders[key]
            self.tape.discard(key)


def _key(step: int, kind: int) -> int:
    return 2 * step + kind


def _copy(past: Any, state: State) -> None:
    if isinstance(state, Mapping):
        for name, array in state.items():
            numpy.copyto(array, past[name])
    else:
        numpy.copyto(state, past)


def _until_end(schedule: CheckpointSchedule) -> list[Any]:
    """All actions of the forward and of one adjoint."""
    actions = []
    for action in schedule:
        actions.append(action)
        if isinstance(action, EndReverse):
            break
    return actions


def _reads(actions: list[Any]) -> list[int]:
    """The snapshots in the order in which these actions read them."""
    stored: dict[tuple[int, StorageType], set[int]] = defaultdict(set)
    reads = []
    for action in actions:
        if isinstance(action, Forward):
            if action.write_ics:
                stored[action.n0, action.storage].add(RESTART)
            if action.write_adj_deps:
                for step in action:
                    stored[step, action.storage].add(NEEDED)
        elif isinstance(action, Reverse):
            reads += [_key(step, NEEDED) for step in action]
        elif isinstance(action, (Copy, Move)):
            kinds = stored[action.n, action.from_storage]
            if action.to_storage == StorageType.WORK and RESTART in kinds:
                reads.append(_key(action.n, RESTART))
            if isinstance(action, Move):
                stored.pop((action.n, action.from_storage))
            stored[action.n, action.to_storage] |= kinds
    return reads
