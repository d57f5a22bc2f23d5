"""The settings of tapes, stores and nodes: keyword arguments and their types. Made by `cargo xtask settings`; see docs/settings.md."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal, TypedDict, Union

# A size such as "2 GiB", or a number of bytes.
Size = Union[str, int]
Path = Union[str, "os.PathLike[str]"]


class TapeDir(TypedDict, total=False):
    """Settings of a directory of a tape."""

    path: Path
    """Where it is; it is created if it is missing."""
    limit: Size
    """How much the tape may keep there; a percentage is of what is free when the tape is opened."""
    direct: bool
    """Whether to bypass the page cache (O_DIRECT) where the file system can."""
    method: Literal["uring", "blocking"]
    """How bytes are moved: many requests at a time by io_uring, or one at a time."""
    depth: int
    """Requests that are under way at a time."""
    request: Size
    """The most that one request moves."""
    segment: Size
    """The length of the files in the directory."""
    register: bool
    """Whether to register host memory with the kernel, which spares work at each request."""


class Device(TypedDict, total=False):
    """Settings of a device."""

    kind: Literal["opencl", "cuda"]
    """Its driver."""
    index: int
    """Its number among those of its kind, from 0."""
    size: Size
    """How much of its memory."""


class SharedHost(TypedDict, total=False):
    """Settings of shared host memory."""

    name: str
    """What all processes that share it call it."""
    total: Size
    """How much all of them have together."""
    mine: Size
    """How much this process may use."""


class Layer(TypedDict, total=False):
    """Settings of a layer."""

    device: Device
    """Memory of a device."""
    host: Size
    """Host memory."""
    shared_host: SharedHost
    """Host memory that several processes of this machine share."""
    dir: Path | TapeDir
    """A directory."""


class StoreDir(TypedDict, total=False):
    """Settings of a directory of a store."""

    path: Path
    """Where it is; it is created if it is missing."""
    limit: Size
    """How much this rank may keep there."""
    keep_last: int
    """Keeps so many of the newest versions there."""
    keep_every: int
    """Keeps versions there whose number is a multiple of this."""
    keep_seconds: float
    """Keeps versions there that are not older."""


class StoreObject(TypedDict, total=False):
    """Settings of an object store of a store."""

    url: str
    """Its address: `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`; the bucket must exist."""
    limit: Size
    """How much this rank may keep there."""
    patience_seconds: float
    """How long a request is repeated while the server does not carry it out; then what needs it has failed."""
    keep_last: int
    """Keeps so many of the newest versions there."""
    keep_every: int
    """Keeps versions there whose number is a multiple of this."""
    keep_seconds: float
    """Keeps versions there that are not older."""


class Ranks(TypedDict, total=False):
    """Settings of ranks."""

    dir: Path
    """A directory that all ranks see, for messages."""
    rank: int
    """Which of them this one is, from 0."""
    count: int
    """How many there are."""
    mpi: Literal["world"] | int
    """The ranks of this communicator of MPI, instead of `rank` and `count`; see docs/mpi.md."""


class TapeSettings(TypedDict, total=False):
    """Settings of a tape."""

    layers: Layer | Iterable[Layer] | None
    """The whole stack, fastest first, for an order that `device`, `host`, `shared_host` and `dir` cannot give; each of those then replaces all layers of its kind."""
    device: Device | Iterable[Device] | None
    """Memory of a device, in which saves then begin."""
    host: Size | None
    """Host memory for snapshots."""
    shared_host: SharedHost | None
    """Host memory that several processes of this machine share."""
    dir: Path | TapeDir | Iterable[Path | TapeDir] | None
    """Directories for what does not fit into memory, fastest first; nothing is left in them."""
    order: Literal["reverse", "forward", "unknown"] | Iterable[int] | None
    """The order in which snapshots will be read; a list of keys is a schedule, and a key may repeat."""
    helpers: int | None
    """Helper threads that move snapshots in the background."""
    helper_cores: int | Iterable[int] | None
    """Cores that helper threads are pinned to, in turn, so that compute threads keep theirs."""
    copy_threads: int | None
    """Threads that a large copy may use."""
    patience_seconds: float | None
    """How long a call waits for slots that only this program can give back, before it fails."""
    touching: Literal["chosen", "concurrent", "sequential", "never"] | None
    """When host memory is touched (pre-faulted) ahead of its use: by measurements, always, while nothing is written to it, or never."""
    pin: bool | None
    """Whether host memory is pinned (locked) once all of it has been touched."""
    preference: Literal["measured", "fixed"] | None
    """How to choose between layers that would all do: by measured speed, or by their order."""
    profile: Path | None
    """A profile of this machine, made by `outcrop survey`, with speeds to begin with."""
    trace: bool | None
    """Whether to keep a timeline for Perfetto and chrome://tracing."""
    log_file: Path | None
    """A file for every event and decision, from which the run can be replayed."""


class StoreSettings(TypedDict, total=False):
    """Settings of a store."""

    dir: Path | StoreDir | Iterable[Path | StoreDir] | None
    """Directories for checkpoints, fastest first; every version goes to each of them."""
    object: str | StoreObject | Iterable[str | StoreObject] | None
    """Object stores for checkpoints, such as `"s3://bucket/prefix"`, below the directories; every version goes to each of them."""
    host: Size | None
    """Host memory that versions pass through; what fits is saved at the speed of a copy."""
    ranks: Ranks | None
    """The processes that save together, which then make the same calls."""
    parity: str | None
    """Which nodes may be lost with all they have: with "4+1" any one of a group of 5 or more; "partner" is "1+1", a copy on another node. Versions are kept on other nodes, too, as a layer after the directories."""
    parity_domain: str | None
    """The failure domain of this rank: ranks that are lost together have the same."""
    parity_network: str | None
    """An address in the network over which nodes send each other what they keep, such as that of one of them."""
    keep_last: int | None
    """Keeps so many of the newest versions."""
    keep_every: int | None
    """Keeps versions whose number is a multiple of this."""
    keep_seconds: float | None
    """Keeps versions that are not older."""
    interval: Literal["young", "daly", "exact", "recompute"] | float | None
    """When it is time to save: by a rule that knows what a save costs and how often things fail, or every so many seconds."""
    failures_seconds: float | Iterable[float] | None
    """The mean time between failures that make a directory's last version necessary, for each directory; the last holds for the rest."""
    compression: str | None
    """How blocks are compressed, where that shortens the way to the first directory."""
    dedup: Literal["versions", "inside", "ranks"] | None
    """Which equal blocks are kept once: between versions, also inside a version, also between ranks."""
    live: Size | None
    """Extra memory with which a save returns at once, and the program's memory is copied in the background (copy-on-write)."""
    incremental: bool | None
    """Whether only changed blocks are written; turn it off if everything changes between two versions."""
    tracking: Literal["chosen", "pages", "protection", "everything"] | None
    """How changes are found: by what is cheapest, by dirty pages, by write protection, or by hashing everything."""
    marks_pinned: bool | None
    """Whether the program calls `mark_dirty` for what io_uring or RDMA writes to pinned memory; if not, everything is hashed while it has such memory."""
    block: Size | None
    """The length of blocks, a power of two from 256 bytes to 16 MiB: what is compared, and written if it has changed."""
    hash: Literal["xxh3", "blake3", "md5"] | None
    """How blocks are compared and checked (checksum)."""
    hash_device: str | Iterable[str] | None
    """Devices that hash whenever they are faster than the processor, copies included; `outcrop survey` lists devices."""
    certain: bool | None
    """Whether blocks with equal hashes are also compared byte by byte, which takes a second copy of all regions in memory."""
    in_flight: int | None
    """Versions that may be in flight at a time; a save waits for the oldest."""
    chain_max: int | None
    """From how many packs a version may be put together, before packs are merged in the background."""
    pin: bool | None
    """Whether host memory is pinned (locked) once all of it has been touched."""
    threads: int | None
    """Threads that hash and copy."""


class NodeSettings(TypedDict, total=False):
    """Settings of a node."""

    directory: Path | None
    """Where the daemon and its clients meet."""
    start: bool | None
    """Whether a daemon is started if there is none; the settings below are for such a daemon."""
    program: Path | None
    """The program that is started; without a directory it is looked for as the shell does."""
    memory: Size | None
    """The most memory that output takes before it is drained."""
    threads: int | None
    """How many drains are under way at once."""
    cores: int | Iterable[int] | None
    """Cores that drain threads are pinned to, in turn."""
    idle_seconds: float | None
    """How long the daemon stays when nobody uses it and everything is drained."""
    reserve: Path | None
    """A file for the memory, so that what is in it survives all processes."""
    verify: bool | None
    """Whether what was drained is read back and compared."""
    trace: Path | None
    """A file for a timeline, for Perfetto and chrome://tracing."""
