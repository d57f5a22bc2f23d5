"""The tape: snapshots written in one order and read back in a known other one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _outcrop, _settings
from ._opened import Opened
from .settings import TapeSettings

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Tape(Opened, _outcrop.Tape):
    """Snapshots that sink to slower and larger layers, and come back up before they are asked for.

        Tape(host="2 GiB", dir="scratch", order="reverse")

    host:   how much host memory, as a text or a number of bytes. Needed.
    dir:    a directory, or several, fastest first. Each is a path, or {"path": ..., "limit": "200 GiB"}; without a limit it may
            fill 90% of what is free. Nothing is left in it.
    order:  in which order snapshots will be read: "reverse", "forward", "unknown", or a list of keys.
    All others are listed in `outcrop.settings.TapeSettings` and in docs/settings.md.

    A variable such as OUTCROP_HOST overrides a setting. Every thread may use a tape.
    """

    __signature__ = _settings.signature(TapeSettings)

    def __new__(cls, **settings: Unpack[TapeSettings]) -> Tape:
        return super().__new__(cls, _settings.text(TapeSettings, settings))._close_at_exit()

    def __repr__(self) -> str:
        if self.closed:
            return "<outcrop.Tape, closed>"
        layers = self.stats()["layers"]
        return f"<outcrop.Tape, {len(self)} snapshots: {', '.join(map(_use, layers))}>"


def _use(layer: dict[str, Any]) -> str:
    """How full a layer is, for people. One without a limit has no capacity."""
    limit = "" if layer["capacity_bytes"] is None else f" of {_size(layer['capacity_bytes'])}"
    return f"{layer['name']} {_size(layer['used_bytes'])}{limit}"


def _size(size_bytes: int) -> str:
    """A number of bytes, for people."""
    size, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size /= 1024
    return f"{size:.4g} {unit}"
