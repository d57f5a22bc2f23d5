"""Pools: arrays that are ordinary memory, and of which one call makes a version durable."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from . import _outcrop
from ._opened import Opened

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


class Pool(Opened, _outcrop.Pool):
    """A file with arrays. The program reads and writes them as any others; `persist` makes a version of all of them durable, and
    writes what has changed. A crash at any moment leaves the last version whole.

        with Pool("sim.pool", versions=3) as pool:
            heat = pool.array("heat", (1000, 1000))
            heat += 1.0
            version = pool.persist()
            before = pool.view(version)["heat"]     # read-only, while the program goes on
            pool.restore(version)                   # `heat` itself is as it was

    path:      the file. It is created if there is none. A second process gets an error.
    versions:  how many are kept, 1 to 31.
    """

    def __new__(cls, path: str | os.PathLike[str], versions: SupportsIndex = 2) -> Pool:
        return super().__new__(cls, path, versions)._close_at_exit()

    def array(
        self, name: str, shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike = np.float64
    ) -> NDArray[Any]:
        """An array of numbers, as it is in the newest version or in the one that was restored. One that is not there is made of
        zeros. Of more than three dimensions, the pool counts the first ones as one.
        """
        numbers = shape if isinstance(shape, Sequence) else (shape,)
        return self._array(name, numbers, np.dtype(dtype))

    def __repr__(self) -> str:
        return "<outcrop.Pool, closed>" if self.closed else f"<outcrop.Pool, versions {self.versions}>"
