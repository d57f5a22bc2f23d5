"""The tape: snapshots written in one order and read back in a known other one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from . import _outcrop, _settings

Path = str | os.PathLike[str]
Dir = Path | Mapping[str, Any]


class Tape(_outcrop.Tape):
    """Snapshots that sink to slower and larger layers, and come back up before they are asked for.

        Tape(host="2 GiB", dir="scratch", order="reverse")

    host:   how much host memory, as a text or a number of bytes. Needed.
    dir:    a directory, or several, fastest first. Each is a path, or {"path": ..., "limit": "200 GiB"}; without a limit it may
            fill 90% of what is free. Nothing is left in it.
    order:  in which order snapshots will be read: "reverse", "forward", "unknown", or a list of keys.
    helpers, helper_cores, copy_threads, pin, trace, log_file, patience_seconds, profile: see docs/python.md.

    A variable such as OUTCROP_HOST overrides a setting. Every thread may use a tape.
    """

    def __new__(
        cls,
        *,
        host: str | int | None = None,
        dir: Dir | Iterable[Dir] | None = None,
        order: str | Iterable[int] = "reverse",
        **settings: Any,
    ) -> Tape:
        tape = super().__new__(cls, _settings.text({"host": host, "dir": dir, "order": order, **settings}))
        _settings.close_at_exit(tape)
        return tape

    def __enter__(self) -> Tape:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.closed:
            self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "<outcrop.Tape, closed>"
        layers = self.stats()["layers"]
        places = [f"{layer['name']} {_size(layer['used_bytes'])} of {_size(layer['capacity_bytes'])}" for layer in layers]
        return f"<outcrop.Tape, {len(self)} snapshots: {', '.join(places)}>"


def _size(size_bytes: int) -> str:
    """A number of bytes, for people."""
    size, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size /= 1024
    return f"{size:.4g} {unit}"
