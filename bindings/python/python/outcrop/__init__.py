"""Keeps the states that a simulation passes through.

    with outcrop.Tape(host="2 GiB", dir="scratch", order="reverse") as tape:
        for step in range(n):
            forward(u)
            tape.save(step, u)
        for step in reversed(range(n)):
            correlate(tape.take(step))      # an array over the slot, read-only, no copy

    with outcrop.Store(dir="checkpoints") as store:
        session = store.session("run")
        session.save(step, field=field, rng=rng.bit_generator.state)
        session.latest().into(field=field)

    with outcrop.Pool("sim.pool") as pool:
        heat = pool.array("heat", (1000, 1000))     # ordinary memory
        pool.persist()                              # durable, and only what has changed is written

    with outcrop.Node() as node, node.open("restart.7") as file:
        file.write(0, field)                        # in spare memory of the machine; drained behind
"""

from ._arrays import Box, Boxed, box_of, boxed, listed
from ._outcrop import Pending, __version__
from .errors import Busy, Damaged, Exists, Full, Held, Missing, OutcropError, Storage, TooLarge, Usage, WrongType
from .node import Node, NodeFile
from .pool import Pool
from .store import SavedRegion, Session, Store, Version, read, versions
from .tape import Tape

__all__ = [
    "Tape",
    "Store",
    "Pool",
    "Node",
    "NodeFile",
    "Pending",
    "Session",
    "Version",
    "SavedRegion",
    "Box",
    "Boxed",
    "boxed",
    "listed",
    "box_of",
    "read",
    "versions",
    "OutcropError",
    "Busy",
    "Damaged",
    "Exists",
    "Full",
    "Held",
    "Missing",
    "Storage",
    "TooLarge",
    "Usage",
    "WrongType",
    "__version__",
]

# What users see of a class is where they have it from.
for _name in __all__[:-1]:
    globals()[_name].__module__ = __name__
