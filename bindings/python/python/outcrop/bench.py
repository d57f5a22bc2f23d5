"""Measures saving and taking against what programs do otherwise: copies, numpy.save, h5py, torch.save, dcp.async_save.

Of everything several rounds are made, and the best one counts: what memory costs when it is touched for the first time is paid in the first
round, and is in `first_blocked_seconds`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import Store, Tape

MIB = 1 << 20


@dataclasses.dataclass
class Sizes:
    """How much of everything."""

    calls: int = 20_000
    state_bytes: int = 1024 * MIB
    rtm_bytes: int = 6144 * MIB
    rtm_state_bytes: int = 32 * MIB
    rtm_host_bytes: int = 1024 * MIB
    rounds: int = 4


QUICK = Sizes(5_000, 128 * MIB, rtm_bytes=512 * MIB, rtm_state_bytes=16 * MIB, rtm_host_bytes=192 * MIB, rounds=3)

# What is wished for: less than this, or at least.
AIMS = {"call_overhead_us": "below 10", "dcp_default_over_ours": "at least 5", "rtm_blocked_over_copy": "at most 1.3"}

Run = dict[str, Any]


class Watch:
    """Adds up the seconds for which the program does not compute."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start


def bench(sizes: Sizes, directory: str | os.PathLike[str]) -> dict[str, Any]:
    """All measurements. Files are made in a directory of their own in `directory`, which is removed in the end."""
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="outcrop-bench-", dir=directory) as made:
        runs = [*_calls(sizes, ratios), *_states(sizes, Path(made), ratios), *_rtm(sizes, Path(made), ratios)]
    return {"bench": "python", "machine": _machine(), "runs": runs, "ratios": ratios}


def _calls(sizes: Sizes, ratios: dict[str, float]) -> list[Run]:
    """What a call costs: arrays of 4 KiB."""
    _say(f"{sizes.calls} calls with 4 KiB each")
    state = np.ones(512)
    room = np.zeros((sizes.calls, 512))
    best = {"numpy copy": float("inf"), "tape, save": float("inf"), "tape, take": float("inf")}

    def measure(name: str, call: Callable[[int], object], keys: range) -> None:
        start = time.perf_counter()
        for key in keys:
            call(key)
        best[name] = min(best[name], (time.perf_counter() - start) / sizes.calls)

    keys = range(sizes.calls)
    with Tape(host=sizes.calls * 4096 + 16 * MIB) as tape:
        for _ in range(sizes.rounds + 1):
            measure("numpy copy", lambda key: np.copyto(room[key], state), keys)
            measure("tape, save", lambda key: tape.save(key, state), keys)
            measure("tape, take", lambda key: tape.take(key), keys[::-1])
    slowest = max(best["tape, save"], best["tape, take"])
    ratios["call_overhead_us"] = (slowest - best["numpy copy"]) * 1e6
    return [{"part": "call", "way": way, "call_us": seconds * 1e6} for way, seconds in best.items()]


def _states(sizes: Sizes, directory: Path, ratios: dict[str, float]) -> list[Run]:
    """How long a program is blocked that saves its whole state, all of which has changed, as in training.

    Arrays are as large as the weights of a layer of 4096 x 4096. With smaller ones the allocator would keep, and hand out again, what a stager
    has freed, and would hide what new memory costs.
    """
    count = 16
    state = {f"array{index}": np.ones((sizes.state_bytes // count // 4,), "f4") for index in range(count)}
    runs: list[Run] = []
    for way, make in _state_ways(state, sizes, directory).items():
        _say(f"a state of {sizes.state_bytes // MIB} MiB: {way}")
        blocked = []
        with make() as save:
            for number in range(1, sizes.rounds + 1):
                for array in state.values():
                    array += 1
                watch = Watch()
                with watch.blocked():
                    finish = save(number)
                blocked.append(watch.seconds)
                # What goes on in the background is not to slow the next one down.
                finish()
        runs.append({"part": "state", "way": way, "blocked_seconds": min(blocked), "first_blocked_seconds": blocked[0]})
    seconds = {run["way"]: run["blocked_seconds"] for run in runs}
    ratios["state_blocked_over_copy"] = seconds["store, save"] / seconds["numpy copy"]
    # What a program that must not be blocked uses: memory is copied in the background as it was.
    ours = seconds["store, live"]
    for way, name in (("numpy.save", "numpy_save"), ("h5py", "h5py"), ("torch.save", "torch_save"), ("dcp.async_save", "dcp_default")):
        if way in seconds:
            ratios[f"{name}_over_ours"] = seconds[way] / ours
            ratios[f"{name}_over_copying"] = seconds[way] / seconds["store, save"]
    return runs


Finish = Callable[[], object]


def _state_ways(
    state: dict[str, np.ndarray[Any, Any]], sizes: Sizes, directory: Path
) -> dict[str, Callable[[], contextlib.AbstractContextManager[Callable[[int], Finish]]]]:
    """Ways of saving a state: each a block in which a function saves, and returns what waits until the rest is done."""

    def done() -> None:
        pass

    @contextlib.contextmanager
    def copy() -> Iterator[Callable[[int], Finish]]:
        room = {name: np.zeros_like(array) for name, array in state.items()}
        for array in room.values():
            array.fill(1)

        def save(_: int) -> Finish:
            for name, array in state.items():
                np.copyto(room[name], array)
            return done

        yield save

    @contextlib.contextmanager
    def store(**settings: Any) -> Iterator[Callable[[int], Finish]]:
        # Everything changes from one version to the next: there is nothing to compare.
        host = sizes.state_bytes * 5 // 2 + 64 * MIB
        with Store(dir=directory / "store", host=host, keep_last=1, incremental=False, **settings) as store:
            session = store.session("bench")
            if session.versions:
                session.rewind(None)

            def save(number: int) -> Finish:
                session.save(number, **state)
                return session.flush

            yield save

    @contextlib.contextmanager
    def files(write: Callable[[Path], object]) -> Iterator[Callable[[int], Finish]]:
        def save(_: int) -> Finish:
            write(directory / "state")
            return done

        yield save
        (directory / "state").unlink(missing_ok=True)

    def numpy_save(path: Path) -> None:
        with open(path, "wb") as file:
            for array in state.values():
                np.save(file, array)

    ways: dict[str, Any] = {
        "numpy copy": copy,
        "store, save": store,
        "store, live": lambda: store(live=sizes.state_bytes),
        "numpy.save": lambda: files(numpy_save),
    }
    if h5py := _installed("h5py"):

        def h5py_save(path: Path) -> None:
            with h5py.File(path, "w") as file:
                for name, array in state.items():
                    file[name] = array

        ways["h5py"] = lambda: files(h5py_save)
    if torch := _installed("torch"):
        tensors = {name: torch.from_numpy(array) for name, array in state.items()}
        ways["torch.save"] = lambda: files(lambda path: torch.save(tensors, path))
    if dcp := _installed("torch.distributed.checkpoint"):

        @contextlib.contextmanager
        def dcp_save() -> Iterator[Callable[[int], Finish]]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # It says that it has only one process.
                # As it is called by most programs: with the stager that it makes itself.
                yield lambda number: dcp.async_save(tensors, checkpoint_id=directory / f"dcp{number}", no_dist=True).result

        ways["dcp.async_save"] = dcp_save
    return ways


def _rtm(sizes: Sizes, directory: Path, ratios: dict[str, float]) -> list[Run]:
    """A forward pass that keeps every state, and a backward pass that needs them in reverse."""
    steps = sizes.rtm_bytes // sizes.rtm_state_bytes
    wave = _Wave(sizes.rtm_state_bytes)
    runs: list[Run] = []
    for way, keep in _rtm_ways(sizes, directory, wave).items():
        _say(f"{steps} states of {sizes.rtm_state_bytes // MIB} MiB, with {sizes.rtm_host_bytes // MIB} MiB of memory: {way}")
        with keep() as loop:
            rounds = []
            # Ways that use files have no first round that differs.
            for _ in range(sizes.rounds if way.startswith(("tape", "numpy copy")) else 1):
                watch, start = Watch(), time.perf_counter()
                loop(steps, watch)
                rounds.append((watch.seconds, time.perf_counter() - start))
        blocked, wall = min(rounds)
        runs.append(
            {"part": "rtm", "way": way, "blocked_seconds": blocked, "wall_seconds": wall, "first_blocked_seconds": rounds[0][0]}
        )
    seconds = {run["way"]: run["blocked_seconds"] for run in runs}
    ratios["rtm_blocked_over_copy"] = seconds["tape, save"] / seconds["numpy copy"]
    ratios["rtm_lend_blocked_over_copy"] = seconds["tape, lend"] / seconds["numpy copy"]
    ratios["rtm_numpy_save_over_ours"] = seconds["numpy.save"] / seconds["tape, save"]
    return runs


class _Wave:
    """Something to compute: a wave in two dimensions."""

    def __init__(self, state_bytes: int) -> None:
        self.shape = (state_bytes // 4 // 1024, 1024)
        self.own, self.other, self.room, self.image = (np.zeros(self.shape, "f4") for _ in range(4))
        self.reset()

    def reset(self) -> None:
        self.before, self.now = self.own, self.other
        for array in (self.before, self.now, self.image):
            array.fill(0)
        self.now[self.shape[0] // 2, 500] = 1

    def compute(self, following: np.ndarray[Any, Any]) -> None:
        """The next state, from the two before it."""
        now, room = self.now, self.room
        np.add(now[2:], now[:-2], out=room[1:-1])
        np.add(room[:, 1:-1], now[:, 2:], out=room[:, 1:-1])
        np.add(room[:, 1:-1], now[:, :-2], out=room[:, 1:-1])
        np.multiply(room, 0.1, out=room)
        np.multiply(now, 1.6, out=following)
        np.add(following, room, out=following)
        np.subtract(following, self.before, out=following)
        self.before, self.now = now, following

    def correlate(self, past: np.ndarray[Any, Any]) -> None:
        """One step back: it computes as much as one forward does."""
        self.compute(self.before)
        np.multiply(past, self.now, out=self.room)
        np.add(self.image, self.room, out=self.image)


Loop = Callable[[int, Watch], None]


def _rtm_ways(
    sizes: Sizes, directory: Path, wave: _Wave
) -> dict[str, Callable[[], contextlib.AbstractContextManager[Loop]]]:
    """Ways of keeping states: each a block in which a function goes forward and back once."""

    def loop(save: Callable[[int, Any], object], take: Callable[[int], Any]) -> Loop:
        def run(steps: int, watch: Watch) -> None:
            wave.reset()
            for step in range(steps):
                wave.compute(wave.before)
                with watch.blocked():
                    save(step, wave.now)
            for step in reversed(range(steps)):
                with watch.blocked():
                    past = take(step)
                wave.correlate(past)

        return run

    @contextlib.contextmanager
    def copy() -> Iterator[Loop]:
        # Into memory as large as the tape's, again and again: what is read back is not what was saved, but costs nothing, either.
        ring = np.zeros((sizes.rtm_host_bytes // sizes.rtm_state_bytes, *wave.shape), "f4")
        ring.fill(1)
        yield loop(lambda step, state: np.copyto(ring[step % len(ring)], state), lambda step: ring[step % len(ring)])

    @contextlib.contextmanager
    def tape() -> Iterator[Loop]:
        with Tape(host=sizes.rtm_host_bytes, dir=directory / "tape", order="reverse") as tape:
            yield loop(tape.save, tape.take)

    @contextlib.contextmanager
    def lend() -> Iterator[Loop]:
        with Tape(host=sizes.rtm_host_bytes, dir=directory / "tape", order="reverse") as tape:

            def run(steps: int, watch: Watch) -> None:
                wave.reset()
                for step in range(steps):
                    with watch.blocked():
                        lent = tape.lend(step, wave.shape, "f4")
                    wave.compute(lent.__enter__())
                    with watch.blocked():
                        lent.seal()
                del lent
                wave.reset()
                for step in reversed(range(steps)):
                    with watch.blocked():
                        past = tape.take(step)
                    wave.correlate(past)

            yield run

    @contextlib.contextmanager
    def files(save: Callable[[Path, Any], object], load: Callable[[Path], Any]) -> Iterator[Loop]:
        def take(step: int) -> Any:
            state = load(directory / f"step{step}")
            (directory / f"step{step}").unlink()
            return state

        yield loop(lambda step, state: save(directory / f"step{step}", state), take)

    def numpy_save(path: Path, state: Any) -> None:
        with open(path, "wb") as file:
            np.save(file, state)

    ways: dict[str, Any] = {"numpy copy": copy, "tape, save": tape, "tape, lend": lend}
    ways["numpy.save"] = lambda: files(numpy_save, np.load)
    if h5py := _installed("h5py"):

        def h5py_save(path: Path, state: Any) -> None:
            with h5py.File(path, "w") as file:
                file["state"] = state

        def h5py_load(path: Path) -> Any:
            with h5py.File(path) as file:
                return file["state"][...]

        ways["h5py"] = lambda: files(h5py_save, h5py_load)
    if torch := _installed("torch"):
        ways["torch.save"] = lambda: files(
            lambda path, state: torch.save(torch.from_numpy(state), path), lambda path: torch.load(path).numpy()
        )
    return ways


def _installed(name: str) -> Any:
    """A module, if it is there."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _machine() -> dict[str, Any]:
    cpus = Path("/proc/cpuinfo").read_text()
    names = [line.split(":", 1)[1].strip() for line in cpus.splitlines() if line.startswith("model name")]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "processor": names[0] if names else platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def report(found: dict[str, Any]) -> str:
    """What was measured, for people."""
    lines = []
    for run in found["runs"]:
        values = [f"{key.removesuffix('_seconds')} {value:.3f} s" for key, value in run.items() if key.endswith("_seconds")]
        values += [f"{run['call_us']:.2f} µs"] if "call_us" in run else []
        lines.append(f"{run['part']:6} {run['way']:15} {', '.join(values)}")
    lines.append("")
    for name, ratio in found["ratios"].items():
        aim = f"   (aim: {AIMS[name]})" if name in AIMS else ""
        lines.append(f"{name:28} {ratio:8.2f}{aim}")
    return "\n".join(lines)
