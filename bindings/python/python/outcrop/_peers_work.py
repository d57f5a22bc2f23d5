"""What `outcrop.peers` measures: one program with one way of keeping its states, in a process of its own.

    python -m outcrop._peers_work tape outcrop.Tape '{"bytes": 16777216, ...}' DIR

It prints what it has found as JSON: seconds and memory from the first line of the work to its last, without what was imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import queue
import resource
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import Store, Tape
from .bench import _Wave

MIB = 1 << 20
# Names of arrays in a store.
Arrays = dict[str, Any]


class Watch:
    """How long the program waited, each time."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds.append(time.perf_counter() - start)


# Tapes: a forward pass saves every state, and a backward pass takes them in reverse.

Save = Callable[[int, Any], object]
Take = Callable[[int], Any]
Keeps = contextlib.AbstractContextManager[tuple[Save, Take]]


@contextlib.contextmanager
def _nothing(_: dict[str, Any], __: Path) -> Iterator[tuple[Save, Take]]:
    last: list[Any] = []
    yield (lambda _, state: last.__setitem__(slice(None), [state])), (lambda _: last[0])


@contextlib.contextmanager
def _tape(spec: dict[str, Any], directory: Path) -> Iterator[tuple[Save, Take]]:
    with Tape(host=spec["host"], dir=directory / "tape", order="reverse") as tape:
        yield tape.save, tape.take


class _Ring:
    """Buffers, one thread, O_DIRECT: writes behind the forward pass, and reads ahead of the backward pass. No checksums, one order."""

    def __init__(self, spec: dict[str, Any], path: Path) -> None:
        import mmap

        self._bytes = spec["bytes"]
        self._count = spec["count"]
        slots = max(2, min(spec["host"] // self._bytes, self._count))
        self._buffers = [np.frombuffer(mmap.mmap(-1, self._bytes), "f4") for _ in range(slots)]
        for buffer in self._buffers:
            buffer.fill(1)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        self._free: queue.Queue[Any] = queue.Queue()
        self._jobs: queue.Queue[Any] = queue.Queue()
        for buffer in self._buffers:
            self._free.put((0, buffer))
        self._kept: list[Any] | None = None
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        for _ in range(self._count):
            step, buffer = self._jobs.get()
            if buffer is None:
                return
            os.pwrite(self._file, buffer, step * self._bytes)
            self._free.put((step, buffer))
        for step in reversed(range(self._count - len(self._buffers))):
            _, buffer = self._jobs.get()
            if buffer is None:
                return
            os.preadv(self._file, [buffer], step * self._bytes)
            self._free.put((step, buffer))

    def save(self, step: int, state: Any) -> None:
        _, buffer = self._free.get()
        np.copyto(buffer.reshape(state.shape), state)
        self._jobs.put((step, buffer))

    def take(self, step: int) -> Any:
        if self._kept is None:
            self._kept = [self._free.get() for _ in self._buffers]
        elif self._last is not None:
            self._jobs.put((0, self._last))
        found, self._last = self._kept.pop() if self._kept else self._free.get()
        assert found == step
        return self._last

    _last: Any = None

    def close(self) -> None:
        self._jobs.put((0, None))
        self._thread.join()
        os.close(self._file)


@contextlib.contextmanager
def _ring(spec: dict[str, Any], directory: Path) -> Iterator[tuple[Save, Take]]:
    ring = _Ring(spec, directory / "ring")
    yield ring.save, ring.take
    ring.close()
    (directory / "ring").unlink()


@contextlib.contextmanager
def _memmap(spec: dict[str, Any], directory: Path) -> Iterator[tuple[Save, Take]]:
    path = directory / "memmap"
    memory = np.memmap(path, "f4", "w+", shape=(spec["count"], spec["bytes"] // 4))

    def save(step: int, state: Any) -> None:
        memory[step] = state.ravel()

    yield save, lambda step: memory[step]
    del memory
    path.unlink()


@contextlib.contextmanager
def _h5py(spec: dict[str, Any], directory: Path) -> Iterator[tuple[Save, Take]]:
    import h5py

    path = directory / "states.h5"
    with h5py.File(path, "w") as file:
        states = file.create_dataset("states", (spec["count"], spec["bytes"] // 4), "f4")

        def save(step: int, state: Any) -> None:
            states[step] = state.ravel()

        yield save, lambda step: states[step]
    path.unlink()


@contextlib.contextmanager
def _zarr(spec: dict[str, Any], directory: Path) -> Iterator[tuple[Save, Take]]:
    import shutil

    import zarr

    path, shape = directory / "states.zarr", (spec["count"], spec["bytes"] // 4)
    # A chunk is a state, as it is: compressing takes far longer than the disk.
    states = zarr.create_array(store=str(path), shape=shape, chunks=(1, shape[1]), dtype="f4", compressors=None)

    def save(step: int, state: Any) -> None:
        states[step] = state.ravel()

    yield save, lambda step: states[step]
    shutil.rmtree(path)


TAPES: dict[str, Callable[[dict[str, Any], Path], Keeps]] = {
    "nothing stored": _nothing,
    "outcrop.Tape": _tape,
    "ring of 35 lines": _ring,
    "numpy.memmap": _memmap,
    "h5py": _h5py,
    "zarr": _zarr,
}
# This one calls the program, and not the other way round.
PYREVOLVE = "pyrevolve"


def tape_work(way: str, spec: dict[str, Any], directory: Path) -> dict[str, Any]:
    """A wave forward, and an image of it backward."""
    wave, watch = _Wave(spec["bytes"]), Watch()
    clock = Clock()
    if way == PYREVOLVE:
        _revolve(spec, wave)
    else:
        with TAPES[way](spec, directory) as (save, take):
            for step in range(spec["count"]):
                wave.compute(wave.before)
                with watch.blocked():
                    save(step, wave.now)
            for step in reversed(range(spec["count"])):
                with watch.blocked():
                    past = take(step)
                wave.correlate(past.reshape(wave.shape))
                del past
    image = None if way == "nothing stored" else hashlib.sha256(wave.image.tobytes()).hexdigest()[:16]
    return {**clock.read(), "blocked_seconds": sum(watch.seconds), "result": image}


def _revolve(spec: dict[str, Any], wave: _Wave) -> None:
    """Keeps as many states as fit into memory, and computes the others again."""
    import pyrevolve

    class Checkpoint(pyrevolve.Checkpoint):  # type: ignore[misc, unused-ignore]
        dtype = np.float32
        size = 2 * spec["bytes"] // 4

        def get_data(self, timestep: int) -> list[Any]:
            return [wave.before, wave.now]

        get_data_location = get_data

    class Operator(pyrevolve.Operator):  # type: ignore[misc, unused-ignore]
        def __init__(self, apply: Callable[..., None]) -> None:
            self._apply = apply

        def apply(self, **arguments: Any) -> None:
            self._apply(**arguments)

    back: list[Any] = []

    def forward(t_start: int, t_end: int) -> None:
        for _ in range(t_start, t_end):
            wave.compute(wave.before)

    def reverse(t_start: int, t_end: int) -> None:
        # The state of this step is there; the backward pass has a wave of its own, which begins with the last state.
        past = wave.now
        if not back:
            back.append(_Wave(spec["bytes"]))
            back[0].before, back[0].now, back[0].image = wave.before.copy(), wave.now.copy(), wave.image
        back[0].correlate(past)

    count = max(2, spec["host"] // (2 * spec["bytes"]))
    revolver = pyrevolve.Revolver(Checkpoint(), Operator(forward), Operator(reverse), count, spec["count"])
    revolver.apply_forward()
    revolver.apply_reverse()


# Stores: a model is trained, and a checkpoint is saved every few steps.


class _Model:
    """A small transformer and Adam, on the processor."""

    def __init__(self, spec: dict[str, Any]) -> None:
        import torch

        torch.manual_seed(1)
        width, layers = spec["width"], spec["layers"]
        layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self._torch = torch
        self.model = torch.nn.TransformerEncoder(layer, layers)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self._batch = torch.randn(spec["batch"], 64, width)
        self.step()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self._batch).square().mean().backward()
        self.optimizer.step()

    def state(self) -> Arrays:
        """All tensors, by name."""
        tensors = dict(self.model.state_dict())
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        for parameter, values in self.optimizer.state.items():
            tensors.update({f"{names[id(parameter)]}.{what}": value for what, value in values.items()})
        return tensors

    def empty(self) -> Arrays:
        return {name: self._torch.empty_like(tensor) for name, tensor in self.state().items()}

    def digest(self, tensors: Arrays) -> str:
        """The last bytes of every tensor."""
        text = b"".join(np.asarray(tensor).ravel()[-64:].tobytes() for _, tensor in sorted(tensors.items()))
        return hashlib.sha256(text).hexdigest()[:16]


Finish = Callable[[], object]
# Saves a checkpoint and returns what waits for its end; loads the newest one; ends.
Saving = tuple[Callable[[int, Arrays], Finish], Callable[[Arrays], Arrays]]


def _done() -> None:
    """Nothing is left to be done."""


def _sizes(tensors: Arrays) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


@contextlib.contextmanager
def _not_saved(_: Path, __: Arrays) -> Iterator[Saving]:
    yield (lambda _, __: _done), (lambda empty: {})


@contextlib.contextmanager
def _outcrop_store(directory: Path, tensors: Arrays, **settings: Any) -> Iterator[Saving]:
    host = _sizes(tensors) * 5 // 4 + 32 * MIB
    with Store(dir=directory / "store", host=host, keep_last=2, incremental=False, **settings) as store:
        session = store.session("run")

        def save(number: int, state: Arrays) -> Finish:
            session.save(number, **{name: tensor.detach().numpy() for name, tensor in state.items()})
            return lambda: session.wait(number)

        def load(empty: Arrays) -> Arrays:
            session.restore(**{name: tensor.numpy() for name, tensor in empty.items()})
            return empty

        yield save, load


@contextlib.contextmanager
def _outcrop_live(directory: Path, tensors: Arrays) -> Iterator[Saving]:
    with _outcrop_store(directory, tensors, live=_sizes(tensors)) as saving:
        yield saving


@contextlib.contextmanager
def _outcrop_dcp(directory: Path, tensors: Arrays) -> Iterator[Saving]:
    import torch.distributed.checkpoint as dcp

    from .dcp import StorageReader, StorageWriter

    with StorageWriter("run", dir=directory / "dcp", keep_last=2, incremental=False) as writer:

        def save(number: int, state: Arrays) -> Finish:
            return dcp.async_save(state, storage_writer=writer, checkpoint_id=number, no_dist=True).result

        def load(empty: Arrays) -> Arrays:
            dcp.load(empty, storage_reader=StorageReader("run", dir=directory / "dcp"), no_dist=True)
            return empty

        yield save, load


def _torch_dcp(is_cached: bool) -> Callable[[Path, Arrays], contextlib.AbstractContextManager[Saving]]:
    @contextlib.contextmanager
    def way(directory: Path, _: Arrays) -> Iterator[Saving]:
        import shutil

        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        # What is staged stays allocated if the stager does.
        stager = DefaultStager(StagingOptions(False, False, False, False)) if is_cached else None
        newest: list[Path] = []

        def save(number: int, state: Arrays) -> Finish:
            newest.append(directory / f"checkpoint-{number}")
            for old in newest[:-2]:
                shutil.rmtree(old, ignore_errors=True)
            future = dcp.async_save(state, checkpoint_id=newest[-1], async_stager=stager, no_dist=True)
            finish: Finish = future.result
            return finish

        def load(empty: Arrays) -> Arrays:
            dcp.load(empty, checkpoint_id=newest[-1], no_dist=True)
            return empty

        yield save, load
        if stager is not None:
            stager.close()

    return way


@contextlib.contextmanager
def _torch_save(directory: Path, _: Arrays) -> Iterator[Saving]:
    import torch

    path = directory / "checkpoint.pt"

    def save(_: int, state: Arrays) -> Finish:
        torch.save(state, path)
        return _done

    yield save, lambda _: dict(torch.load(path))


@contextlib.contextmanager
def _safetensors(directory: Path, _: Arrays) -> Iterator[Saving]:
    from safetensors.torch import load_file, save_file

    path = directory / "checkpoint.safetensors"

    def save(_: int, state: Arrays) -> Finish:
        save_file({name: tensor.detach() for name, tensor in state.items()}, path)
        return _done

    yield save, lambda _: dict(load_file(path))


@contextlib.contextmanager
def _torchsnapshot(directory: Path, _: Arrays) -> Iterator[Saving]:
    import shutil

    import torchsnapshot

    newest: list[Path] = []

    def save(number: int, state: Arrays) -> Finish:
        newest.append(directory / f"snapshot-{number}")
        for old in newest[:-2]:
            shutil.rmtree(old, ignore_errors=True)
        pending = torchsnapshot.Snapshot.async_take(str(newest[-1]), {"state": torchsnapshot.StateDict(**state)})
        finish: Finish = pending.wait
        return finish

    def load(empty: Arrays) -> Arrays:
        found = torchsnapshot.StateDict(**empty)
        torchsnapshot.Snapshot(str(newest[-1])).restore({"state": found})
        return dict(found)

    yield save, load


@contextlib.contextmanager
def _orbax(directory: Path, _: Arrays) -> Iterator[Saving]:
    import shutil

    import orbax.checkpoint as ocp

    checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
    newest: list[Path] = []

    def save(number: int, state: Arrays) -> Finish:
        newest.append((directory / f"orbax-{number}").resolve())
        for old in newest[:-2]:
            shutil.rmtree(old, ignore_errors=True)
        checkpointer.save(newest[-1], args=ocp.args.PyTreeSave({name: value.detach().numpy() for name, value in state.items()}))
        finish: Finish = checkpointer.wait_until_finished
        return finish

    yield save, lambda _: dict(checkpointer.restore(newest[-1]))
    checkpointer.close()


STORES: dict[str, Callable[[Path, Arrays], contextlib.AbstractContextManager[Saving]]] = {
    "nothing saved": _not_saved,
    "outcrop.Store": _outcrop_store,
    "outcrop.Store, live": _outcrop_live,
    "outcrop.dcp": _outcrop_dcp,
    "dcp.async_save": _torch_dcp(is_cached=False),
    "dcp.async_save, cached": _torch_dcp(is_cached=True),
    "torch.save": _torch_save,
    "safetensors": _safetensors,
    "torchsnapshot": _torchsnapshot,
    "orbax": _orbax,
}


def store_work(way: str, spec: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Trains, and saves every few steps. A save waits for the one before, as PyTorch's guide does it. Then loads the newest."""
    model, watch = _Model(spec), Watch()
    clock, finish, expected = Clock(), _done, ""
    with STORES[way](directory, model.state()) as (save, load):
        for step in range(1, spec["steps"] + 1):
            model.step()
            if step % spec["every"] == 0:
                with watch.blocked():
                    finish()
                    finish = save(step, model.state())
                if step > spec["steps"] - spec["every"]:
                    expected = model.digest(model.state())
        finish()
        trained = clock.read()
        _forget_files(directory)
        # Memory that nobody has touched, as in a program that has just begun.
        empty, start = model.empty(), time.perf_counter()
        found = load(empty)
        loaded = time.perf_counter() - start
    is_right = way == "nothing saved" or model.digest(found) == expected
    median = float(np.median(watch.seconds))
    result = "as saved" if is_right else "WRONG"
    return {**trained, "blocked_seconds": sum(watch.seconds), "save_seconds": median, "load_seconds": loaded, "result": result}


def _forget_files(directory: Path) -> None:
    """Has the system drop these files from its cache, so that every way reads from the disk."""
    for path in directory.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


class Clock:
    """Seconds of the wall and of all processors, and memory beyond what there was when it was made."""

    def __init__(self) -> None:
        self._resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        # From here on, the system counts the peak anew.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._processor = sum(os.times()[:4])
        self._start = time.perf_counter()

    def read(self) -> dict[str, float]:
        wall, processor = time.perf_counter() - self._start, sum(os.times()[:4]) - self._processor
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)
        peak = peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        return {"wall_seconds": wall, "processor_seconds": processor, "peak_bytes": max(0, peak - self._resident)}


# What each way imports, beyond what `outcrop` needs.
NEEDS = {
    "outcrop.Store": ["torch"],
    "outcrop.Store, live": ["torch"],
    "outcrop.dcp": ["torch"],
    "nothing saved": ["torch"],
    "dcp.async_save": ["torch"],
    "dcp.async_save, cached": ["torch"],
    "torch.save": ["torch"],
    "safetensors": ["torch", "safetensors"],
    "torchsnapshot": ["torch", "torchsnapshot"],
    "orbax": ["torch", "jax", "orbax.checkpoint"],
    "h5py": ["h5py"],
    "zarr": ["zarr"],
    PYREVOLVE: ["pyrevolve"],
}


def main() -> None:
    part, way, spec, directory = sys.argv[1:]
    warnings.simplefilter("ignore")
    for name in NEEDS.get(way, []):
        importlib.import_module(name)
    work = {"tape": tape_work, "store": store_work}[part]
    print(json.dumps(work(way, json.loads(spec), Path(directory))))


if __name__ == "__main__":
    main()
