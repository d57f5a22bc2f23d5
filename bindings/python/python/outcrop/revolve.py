"""A storage for pyrevolve that keeps its checkpoints on a tape.

    revolver = Revolver(checkpoint, forward, reverse, n_checkpoints, n_timesteps)
    revolver.resetStorageList()
    revolver.addStorage(Storage(checkpoint.size, n_checkpoints, checkpoint.dtype, host="2 GiB", dir="scratch"))

or in the `storage_list` of a `MultiLevelRevolver`. With directories below, checkpoints need little memory: have as many as the
disk holds, and less is recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy
import pyrevolve.storage

from . import Tape

__all__ = ["Storage"]


class Storage(pyrevolve.storage.Storage):
    """Checkpoints on a tape, by number or as a stack. All further arguments are those of a `Tape`."""

    def __init__(
        self,
        size_ckp: int,
        n_ckp: int,
        dtype: Any,
        profiler: Any = None,
        wd: float = 0,
        rd: float = 0,
        name: str = "OutcropStorage",
        **tape: Any,
    ) -> None:
        super().__init__(size_ckp, n_ckp, dtype, profiler, wd=wd, rd=rd, name=name)
        # Revolve reads what lies on top.
        self.tape = Tape(**{"order": "reverse", **tape})
        self._keys: set[int] = set()
        self._depth = 0

    def save(self, key: int, data_pointers: Sequence[numpy.ndarray]) -> None:
        """Keeps copies of these arrays, in place of what had this key."""
        with self._timer("copy_save"):
            self._discard(key)
            self.tape.save(key, **{str(index): array for index, array in enumerate(data_pointers)})
            self._keys.add(key)

    def load(self, key: int, locations: Sequence[numpy.ndarray]) -> None:
        """Copies a checkpoint to these arrays, and keeps it."""
        with self._timer("copy_load"):
            past = self.tape.get(key)
            if len(past) != len(locations):
                raise ValueError(f"checkpoint {key} has {len(past)} arrays, and {len(locations)} are to be loaded")
            for index, array in enumerate(locations):
                numpy.copyto(array, past[str(index)])

    def push(self, data_pointers: Sequence[numpy.ndarray]) -> None:
        """Keeps copies of these arrays on top."""
        if self.isFull():
            raise ValueError(f"{self.name} was made for {self.n_ckp} checkpoints, and all are in use")
        self.save(self._depth, data_pointers)
        self._depth += 1

    def peek(self, locations: Sequence[numpy.ndarray]) -> None:
        """Copies what is on top to these arrays; nothing if there is nothing."""
        if not self.isEmpty():
            self.load(self._depth - 1, locations)

    def pop(self, locations: Sequence[numpy.ndarray]) -> None:
        """Copies what is on top to these arrays, and removes it."""
        if self.isEmpty():
            raise ValueError(f"{self.name} is empty")
        self._depth -= 1
        self.load(self._depth, locations)
        self._discard(self._depth)

    def isFull(self) -> bool:  # noqa: N802, as pyrevolve has it
        """Whether another checkpoint would be too many."""
        return bool(self._depth >= self.n_ckp)

    def isEmpty(self) -> bool:  # noqa: N802, as pyrevolve has it
        """Whether there is nothing on the stack."""
        return self._depth == 0

    def close(self) -> None:
        """Gives back memory and files."""
        self.tape.close()

    def _discard(self, key: int) -> None:
        if key in self._keys:
            self._keys.remove(key)
            self.tape.discard(key)

    def _timer(self, action: str) -> Any:
        return self.profiler.get_timer("storage", action) if self.profiler else nullcontext()
