"""PyTorch's distributed checkpoints in a store: complete or absent, checksummed, and only what has changed is written.

    writer = StorageWriter("run", dir="checkpoints", keep_last=3)
    dcp.save(state, storage_writer=writer, checkpoint_id=step)
    future = dcp.async_save(state, storage_writer=writer, checkpoint_id=step)    # goes on after a copy into memory

    dcp.load(state, storage_reader=StorageReader("run", dir="checkpoints"))      # the newest; on any number of ranks

Each rank has a series of versions of its own, `run-rank-0` and so on. The series `run` says what lies where; its version is
written last, by the coordinator, and makes a checkpoint exist.
"""

from __future__ import annotations

import bisect
import concurrent.futures
import copy
import dataclasses
import hashlib
import io
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.tensor import DTensor
from torch.futures import Future

from . import Missing, Session, Store, Tape, Usage, Version, read, versions
from .torch import bytes_of, tensor_over

__all__ = ["Stager", "StorageReader", "StorageWriter"]

# What the series that says what lies where has in each version.
INDEX = "metadata"
# That series needs no more memory than this.
INDEX_HOST = "16 MiB"
NAME_BYTES_MAX = 200
PATIENCE_SECONDS = 3600.0
# PyTorch starts the thread of a save at once when it was staged.
BEGIN_SECONDS = 10.0
# What a tape may need beyond what is saved: for each array, and for all.
ALIGNMENT_BYTES = 4096
SPARE_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a tensor, a part of one, or some bytes lie."""

    session: str
    region: str
    dtype: torch.dtype
    size: torch.Size


class Stager(AsyncStager):
    """Copies a state dict so that training can go on, into memory that is used again by the next one and is therefore touched.

    The arguments are those of a `Tape`. `host` is how much memory it may take: room for two copies of the largest state dict so
    far, where nothing is said. When it is full, the next save waits until one before has been written.
    """

    _synchronize_after_execute = False

    def __init__(self, **tape: Any) -> None:
        self._options = {"order": "forward", "patience_seconds": PATIENCE_SECONDS, **tape}
        self._tape: Tape | None = None
        self._host_bytes = 0
        self._keys = itertools.count()

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """A copy of the state dict."""
        # Two names for the same tensor are one copy.
        tensors = {_identity(tensor): tensor for tensor in _tensors(state_dict) if tensor.numel()}
        arrays = {identity: bytes_of(tensor) for identity, tensor in tensors.items()}
        staged: Mapping[str, numpy.ndarray] = {}
        if arrays:
            tape, key = self._with_room_for(arrays), next(self._keys)
            tape.save(key, **arrays)
            # The memory is free again when the last tensor over it is gone.
            staged = tape.take(key)

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.numel():
                return torch.empty(tensor.size(), dtype=tensor.dtype)
            return tensor_over(staged[_identity(tensor)], tensor.dtype, tensor.size())

        copies: dict[str, Any] = _with_tensors(state_dict, copied)
        return copies

    def _with_room_for(self, arrays: Mapping[str, numpy.ndarray]) -> Tape:
        needed_bytes = 2 * sum(array.nbytes + ALIGNMENT_BYTES for array in arrays.values()) + SPARE_BYTES
        has_grown = "host" not in self._options and needed_bytes > self._host_bytes
        if self._tape is None or self._tape.closed or has_grown:
            # What was staged before stays where it is until it has been written.
            self.close()
            self._host_bytes = needed_bytes
            self._tape = Tape(**{"host": needed_bytes, **self._options})
        return self._tape

    def synchronize_staging(self) -> None:
        """Nothing to do: what `stage` returns is complete."""

    def close(self) -> None:
        """Gives back the memory."""
        if self._tape is not None and not self._tape.closed:
            self._tape.close()


class StorageWriter(storage.StorageWriter, AsyncStager):
    """Writes checkpoints as versions of a store. `checkpoint_id` is their number; the next one, where nothing is said.

    `host` is the memory through which what is written passes, `staging` that of `async_save`: see `Stager`. All other
    arguments are those of a `Store`. A writer keeps its series open, so use one for all checkpoints of a run, and close it.

    Saves go one after the other: a call waits until the save before has ended. If that was one in the background, it has failed,
    and nobody has asked its future for the result, then the call raises that failure, once, and saves nothing.
    """

    _synchronize_after_execute = False

    def __init__(self, name: str, *, staging: Mapping[str, Any] | None = None, **store: Any) -> None:
        super().__init__()
        self._name = name
        self._options = store
        self._stager = Stager(**(staging or {}))
        # The saves in the background whose end no later call has seen, the oldest first.
        self._background: list[concurrent.futures.Future[Any]] = []
        # Set when the thread of the save that was staged last is here.
        self._begun: threading.Event | None = None
        self._asked: int | None = None
        self._rank = 0
        self._saved: Session | None = None
        self._index: Session | None = None

    def reset(self, checkpoint_id: str | int | os.PathLike[str] | None = None) -> None:
        """The number of the next checkpoint."""
        self._take_turn()
        self._asked = None if checkpoint_id is None else _number(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Opens what is not open yet."""
        self._take_turn()
        if not kwargs.get("use_collectives", True):
            raise Usage("an Outcrop checkpoint needs ranks that agree: leave use_collectives as it is")
        self._open(kwargs.get("rank") or 0, is_coordinator)

    def _open(self, rank: int, is_coordinator: bool) -> None:
        self._rank = rank
        if self._saved is None:
            options = dict(self._options)
            if options.get("keep_last") is not None:
                # The version before is needed until this one is complete on all ranks.
                options["keep_last"] += 1
            self._saved = Store(**options).session(self._session)
        if is_coordinator and self._index is None:
            self._index = Store(**{**self._options, "host": INDEX_HOST}).session(self._name)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tells all ranks the number of the checkpoint."""
        assert self._index is not None, "set_up_storage_writer comes first"
        newest = max(self._index.versions, default=-1)
        version = newest + 1 if self._asked is None else self._asked
        if version <= newest:
            remedy = f"choose a higher number, or forget what is there with rewind({version - 1})"
            raise Usage(f"checkpoint {version} is not above {newest}, the newest of {self._name}; {remedy}")
        self._version = version
        return [dataclasses.replace(plan, storage_data=version) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[storage.WriteResult]]:
        """Saves what this rank has to, and waits until it is durable."""
        assert self._saved is not None, "set_up_storage_writer comes first"
        version: int = plan.storage_data
        if max(self._saved.versions, default=-1) >= version:
            # It never became a checkpoint: a program was ended in between.
            self._saved.rewind(version - 1 if version else None)
        arrays, results = {}, []
        for item in plan.items:
            resolved = planner.resolve_data(item)
            if isinstance(resolved, io.BytesIO):
                array = numpy.frombuffer(resolved.getbuffer(), numpy.uint8)
                dtype, size = torch.uint8, torch.Size([len(array)])
            else:
                array, dtype, size = bytes_of(resolved), resolved.dtype, resolved.size()
            place = Place(self._session, _region(item.index), dtype, size)
            if array.nbytes:
                arrays[place.region] = array
            results.append(storage.WriteResult(index=item.index, size_in_bytes=array.nbytes, storage_data=place))
        self._saved.save(version, **arrays)
        self._saved.wait(version)
        future: Future[list[storage.WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[storage.WriteResult]]) -> None:
        """Makes the checkpoint exist."""
        assert self._index is not None, "set_up_storage_writer comes first"
        metadata.storage_data = {result.index: result.storage_data for of_rank in results for result in of_rank}
        self._index.save(self._version, **{INDEX: metadata})
        self._index.wait(self._version)
        # Without a number for the next one, PyTorch does not call `reset`.
        self._asked = None

    def rewind(self, version: int) -> None:
        """Forgets all checkpoints above this one, so that training can go on from there in another way. All ranks call it."""
        self._settle()
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        self._open(rank, is_coordinator=rank == 0)
        for session in (self._index, self._saved):
            if session is not None:
                session.rewind(version)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether this can be the number of a checkpoint."""
        try:
            _number(checkpoint_id)
        except Usage:
            return False
        return True

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """As `Stager.stage`, for `async_save`."""
        self._settle()
        staged = self._stager.stage(state_dict)
        self._begun = threading.Event()
        return staged

    def synchronize_staging(self) -> None:
        """Nothing to do: what `stage` returns is complete."""

    def _take_turn(self) -> None:
        """Waits until the saves before this one have ended."""
        future = _future_of_this_thread()
        if future is None:
            self._settle()
        elif future not in self._background:
            before = list(self._background)
            self._background.append(future)
            if self._begun is not None:
                self._begun.set()
            concurrent.futures.wait(before)

    def _settle(self) -> None:
        """Waits for the saves in the background, and raises the failure of one that the program has not seen."""
        if self._begun is not None:
            # It never begins if PyTorch has refused it after it was staged.
            self._begun.wait(BEGIN_SECONDS)
            self._begun = None
        while self._background:
            future = self._background[0]
            concurrent.futures.wait([future])
            del self._background[0]
            error = None if future.cancelled() else future.exception()
            if error is not None:
                # Its traceback refers to what was staged, and may live long.
                self._stager.close()
                if not _was_raised(error):
                    raise error

    def close(self) -> None:
        """Ends the series of this rank, and gives back all memory."""
        try:
            self._settle()
        finally:
            self._stager.close()
            for session in (self._saved, self._index):
                if session is not None:
                    session.close()
            self._saved = self._index = None

    def __enter__(self) -> StorageWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise Usage("a writer cannot go to another process: use async_save with AsyncCheckpointerType.THREAD")

    @property
    def _session(self) -> str:
        return f"{self._name}-rank-{self._rank}"


class StorageReader(storage.StorageReader):
    """Reads a checkpoint that a `StorageWriter` has written: that of the number `checkpoint_id`, or the newest that is whole.

    Tensors are restored from their bytes. What is no tensor is unpickled, and so is the list of what there is: only read what you
    trust.
    """

    def __init__(self, name: str, *, dir: Any) -> None:
        super().__init__()
        self._name = name
        self._dir = dir
        self._asked: int | None = None
        self._version = -1
        self._places: dict[MetadataIndex, Place] = {}

    def reset(self, checkpoint_id: str | int | os.PathLike[str] | None = None) -> None:
        """The number of the checkpoint to be read."""
        self._asked = None if checkpoint_id is None else _number(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What there is in the checkpoint."""
        there = versions(self._name, self._dir)
        wanted = [self._asked] if self._asked is not None else reversed(there)
        for version in wanted:
            if version not in there:
                continue
            metadata: Metadata = read(self._name, self._dir, version)[INDEX]
            sessions = {place.session for place in metadata.storage_data.values()}
            if all(version in versions(session, self._dir) for session in sessions):
                self._version = version
                return metadata
        asked = "" if self._asked is None else f" {self._asked}"
        known = ", ".join(map(str, there)) or "none"
        raise Missing(f"{self._name} in {self._dir} has no complete checkpoint{asked}; listed are: {known}")

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Remembers what lies where."""
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what this rank needs, whichever rank has written it."""
        opened: dict[str, Version] = {}
        # Tensors that are restored as they were saved, by series and region: all of a series at once, as each time everything
        # that it has is verified.
        whole: dict[str, dict[str, torch.Tensor]] = {}
        targets: list[tuple[Any, torch.Tensor]] = []
        taken = _Taken()
        for item in plan.items:
            place = self._places[item.storage_index]
            if place.session not in opened:
                opened[place.session] = read(place.session, self._dir, self._version)
            version = opened[place.session]
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(version[place.region]))
                continue
            target = planner.resolve_tensor(item).detach()
            targets.append((item, target))
            if not target.numel():
                continue
            is_same = target.is_cpu and target.is_contiguous() and (target.dtype, target.size()) == (place.dtype, place.size)
            others = whole.setdefault(place.session, {})
            if is_same and place.region not in others and taken.add(target):
                others[place.region] = target
            else:
                self._load_part(version, place, item, target)
        for session, tensors in whole.items():
            opened[session].into(**{region: bytes_of(tensor) for region, tensor in tensors.items()})
        for item, target in targets:
            planner.commit_tensor(item, target)
        self._asked = None
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _load_part(self, version: Version, place: Place, item: Any, target: torch.Tensor) -> None:
        saved = tensor_over(version[place.region], place.dtype, place.size)
        for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            saved = saved.narrow(dim, start, length)
        if saved.size() != target.size():
            sizes = f"{tuple(saved.size())}, and the tensor has {tuple(target.size())}"
            raise Usage(f"{item.storage_index.fqn} was saved with size {sizes}")
        target.copy_(saved)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether this can be the number of a checkpoint."""
        return StorageWriter.validate_checkpoint_id(checkpoint_id)


def _number(checkpoint_id: str | int | os.PathLike[str]) -> int:
    text = os.fspath(checkpoint_id) if isinstance(checkpoint_id, os.PathLike) else str(checkpoint_id)
    if not text.isdecimal():
        raise Usage(f"checkpoint_id is {text!r}, and an Outcrop checkpoint has a number, such as the step")
    return int(text)


def _future_of_this_thread() -> concurrent.futures.Future[Any] | None:
    """What `async_save` has returned, in the thread in which that save goes on; None in the foreground. PyTorch tells a writer
    neither, but whoever calls us there has it.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        future = getattr(frame.f_locals.get("self"), "future", None) if _is_of_executor(frame) else None
        if isinstance(future, concurrent.futures.Future):
            return future
        frame = frame.f_back
    return None


def _is_of_executor(frame: FrameType) -> bool:
    return bool(frame.f_globals.get("__name__") == "concurrent.futures.thread")


def _was_raised(error: BaseException) -> bool:
    """Whether the program has asked the future for its result: the first frame of the traceback is the last that raised it."""
    traceback = error.__traceback__
    return traceback is not None and not _is_of_executor(traceback.tb_frame)


class _Taken:
    """Memory of contiguous tensors. Tied weights are one piece of memory, and several threads must not fill it at once."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, tensor: torch.Tensor) -> bool:
        """Adds the memory of a tensor, unless some of it is there."""
        start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        at = bisect.bisect(self._ranges, (start, end))
        is_free = (at == 0 or self._ranges[at - 1][1] <= start) and (at == len(self._ranges) or end <= self._ranges[at][0])
        if is_free:
            self._ranges.insert(at, (start, end))
        return is_free


def _region(index: MetadataIndex) -> str:
    """A name that stays the same from one checkpoint to the next, so that only what has changed is written."""
    name = f"state.{index.fqn}"
    if index.offset is not None and any(index.offset):
        name += f"@{','.join(map(str, index.offset))}"
    if len(name.encode()) > NAME_BYTES_MAX or not name.isprintable() or "/" in name:
        return hashlib.sha256(name.encode()).hexdigest()
    return name


def _identity(tensor: torch.Tensor) -> str:
    return f"{tensor.device} {tensor.data_ptr()} {tensor.dtype} {tuple(tensor.size())} {tensor.stride()}"


def _is_plain(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and value.layout == torch.strided


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors that this process has."""
    if isinstance(value, DTensor):
        yield value.to_local().detach()
    elif _is_plain(value):
        yield value.detach()
    elif isinstance(value, Mapping):
        yield from itertools.chain.from_iterable(map(_tensors, value.values()))
    elif type(value) in (list, tuple):
        yield from itertools.chain.from_iterable(map(_tensors, value))


def _with_tensors(value: Any, copied: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same with copies of these tensors, and of everything that is none."""
    if isinstance(value, DTensor):
        local, mesh, placements = copied(value.to_local().detach()), value.device_mesh, value.placements
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=value.size(), stride=value.stride())
    if _is_plain(value):
        return copied(value.detach())
    if isinstance(value, Mapping):
        return {key: _with_tensors(item, copied) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_tensors(item, copied) for item in value)
    return copy.deepcopy(value)
