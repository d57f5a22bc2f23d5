"""Measures tapes and stores against what programs use otherwise, in an environment of their own: `python -m outcrop bench --peers`.

Each way runs in a process of its own, all of them in random order, several times. What counts is what the whole program pays: wall
time from opening to closing, seconds of all processors, peak memory; and how long it waited. Medians, with the lowest and the
highest.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MIB = 1 << 20

# What each peer is called by pip, and what its ways are. Without torch there is no model to train.
TAPE_PEERS = {"h5py": ["h5py"], "zarr": ["zarr"], "pyrevolve": ["pyrevolve"]}
STORE_PEERS = {
    "torch": ["dcp.async_save", "dcp.async_save, cached", "torch.save"],
    "safetensors": ["safetensors"],
    "torchsnapshot": ["torchsnapshot"],
    "orbax-checkpoint": ["orbax"],
}
OUR_TAPES = ["nothing stored", "outcrop.Tape", "ring of 35 lines", "numpy.memmap"]
OUR_STORES = ["nothing saved", "outcrop.Store", "outcrop.Store, live", "outcrop.dcp"]
# What these need on the processor of what they depend on. The rest are gigabytes for CUDA.
NEEDED = {
    "torch": ["filelock", "fsspec", "jinja2", "networkx", "sympy", "typing_extensions"],
    "torchsnapshot": ["aiofiles", "aiohttp", "importlib-metadata", "nest_asyncio", "psutil", "pyyaml"],
}
# Whether a way has its files on the disk when it says that it has saved.
SYNCED = {"outcrop.Store", "outcrop.Store, live", "outcrop.dcp", "dcp.async_save", "dcp.async_save, cached"}
# So long one way may take, in seconds: to end what hangs.
PATIENCE = 1800


@dataclasses.dataclass
class Sizes:
    """How much of everything."""

    tape: dict[str, int]
    store: dict[str, int]
    rounds: int


USUAL = Sizes(
    {"bytes": 32 * MIB, "count": 96, "host": 512 * MIB},
    {"width": 512, "layers": 6, "batch": 4, "steps": 30, "every": 5},
    rounds=5,
)
QUICK = Sizes(
    {"bytes": 16 * MIB, "count": 40, "host": 160 * MIB},
    {"width": 384, "layers": 4, "batch": 4, "steps": 20, "every": 5},
    rounds=3,
)

Run = dict[str, Any]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Environment:
    """A virtual environment with this package, and with those peers that can be installed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.python = path / "bin" / "python"
        self.left_out: dict[str, str] = {}
        if not self.python.exists():
            say(f"making {path}")
            self._run([sys.executable, "-m", "venv", str(path)])
        # This very package, whichever way it was installed, and nothing else from where it is.
        ours = path / "ours"
        shutil.rmtree(ours, ignore_errors=True)
        ours.mkdir()
        (ours / "outcrop").symlink_to(Path(__file__).parent)
        self.variables = {**os.environ, "PYTHONPATH": str(ours), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(command, env=getattr(self, "variables", None), capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines() or [f"ended with {done.returncode}"]
            raise RuntimeError(said[-1])
        return done.stdout

    def version(self, name: str) -> str | None:
        """The version of an installed package."""
        code = f"import importlib.metadata; print(importlib.metadata.version({name!r}))"
        try:
            return self._run([str(self.python), "-c", code]).strip()
        except RuntimeError:
            return None

    def install(self, name: str) -> bool:
        """Installs a package, unless it is there. What cannot be installed, or not be imported, is left out."""
        try:
            if self.version(name) is None:
                say(f"installing {name}")
                if name in NEEDED and not _has_card():
                    self._pip("--no-deps", name)
                    self._pip(*NEEDED[name])
                else:
                    self._pip(name)
            if name == "torch" and not _has_card():
                self._stand_in()
            module = {"orbax-checkpoint": "orbax.checkpoint"}.get(name, name)
            self._run([str(self.python), "-W", "ignore", "-c", f"import {module}"])
        except RuntimeError as error:
            self.left_out[name] = str(error)
            say(f"{name} is left out: {error}")
            return False
        return True

    def _pip(self, *arguments: str) -> None:
        self._run([str(self.python), "-m", "pip", "install", "--quiet", *arguments])

    def _stand_in(self) -> None:
        """A wheel for CUDA asks for its libraries when it is imported, needed or not."""
        try:
            self._run([str(self.python), "-c", "import torch"])
        except RuntimeError:
            self._run([str(self.python), str(Path(__file__).with_name("_torch_without_cuda.py"))])

    def measure(self, part: str, way: str, spec: dict[str, int], directory: Path) -> Run:
        """Runs one way once."""
        command = [str(self.python), "-m", "outcrop._peers_work", part, way, json.dumps(spec)]
        with tempfile.TemporaryDirectory(prefix="outcrop-peers-", dir=directory) as made:
            done = subprocess.run([*command, made], env=self.variables, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
            raise RuntimeError(said[-1])
        found: Run = json.loads(done.stdout.splitlines()[-1])
        return found


def _has_card() -> bool:
    """Whether packages for CUDA are of use, or what stands in for them cannot be built."""
    return Path("/proc/driver/nvidia").exists() or not all(map(shutil.which, ("gcc", "nm", "readelf")))


def cache() -> Path:
    """Where the environment is kept for the next time."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "outcrop" / f"peers-{platform.python_version()}"


def bench(sizes: Sizes, directory: str | os.PathLike[str], venv: str | os.PathLike[str] | None = None, seed: int = 1) -> Run:
    """All measurements."""
    environment = Environment(Path(venv) if venv else cache())
    environment.install("numpy")
    ways: list[tuple[str, str]] = [("tape", way) for way in OUR_TAPES]
    ways += [("tape", way) for name, of_peer in TAPE_PEERS.items() if environment.install(name) for way in of_peer]
    if environment.install("torch"):
        ways += [("store", way) for way in OUR_STORES]
        ways += [("store", way) for name, of_peer in STORE_PEERS.items() if environment.install(name) for way in of_peer]
    names = ["numpy", *TAPE_PEERS, *STORE_PEERS, "jax"]
    found = {name: environment.version(name) for name in names if name not in environment.left_out}
    runs = _measured(environment, ways, sizes, Path(directory), random.Random(seed))
    versions = {"python": platform.python_version(), **{name: version for name, version in found.items() if version}}
    return {
        "bench": "peers",
        "machine": {"cores": len(os.sched_getaffinity(0)), "kernel": platform.release()},
        "settings": dataclasses.asdict(sizes),
        "versions": versions,
        "left_out": environment.left_out,
        "runs": runs,
        "ratios": _ratios(runs),
    }


def _measured(
    environment: Environment, ways: list[tuple[str, str]], sizes: Sizes, directory: Path, order: random.Random
) -> list[Run]:
    """Every way in every round, in random order. A way that fails once is left out."""
    specs = {"tape": sizes.tape, "store": sizes.store}
    rounds: dict[tuple[str, str], list[Run]] = {way: [] for way in ways}
    for number in range(sizes.rounds):
        for part, way in order.sample(ways, len(ways)):
            if way in environment.left_out:
                continue
            say(f"round {number + 1} of {sizes.rounds}: {part}, {way}")
            try:
                rounds[part, way].append(environment.measure(part, way, specs[part], directory))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                environment.left_out[way] = str(error)
                say(f"{way} is left out: {error}")
    runs = []
    for (part, way), found in rounds.items():
        if found and way not in environment.left_out:
            keys = [key for key in found[0] if key != "result"]
            values = {key: [run[key] for run in found] for key in keys}
            middle = {key: statistics.median(values[key]) for key in keys}
            spread = {f"{key}_range": [min(values[key]), max(values[key])] for key in keys}
            results = sorted({str(run["result"]) for run in found})
            runs.append({"part": part, "way": way, **middle, **spread, "result": ", ".join(results)})
    return runs


def _ratios(runs: list[Run]) -> dict[str, float]:
    """Wall time over storing nothing, and what peers wait over what we do: of medians."""
    ratios = {}
    by_way = {run["way"]: run for run in runs}
    for part, base in (("tape", "nothing stored"), ("store", "nothing saved")):
        for run in (run for run in runs if run["part"] == part and base in by_way and run["way"] != base):
            ratios[f"{run['way']}: wall over {base}"] = run["wall_seconds"] / by_way[base]["wall_seconds"]
    ours = by_way.get("outcrop.dcp")
    for way in ("dcp.async_save", "dcp.async_save, cached"):
        if ours and way in by_way:
            ratios[f"{way}: save returns, over outcrop.dcp"] = by_way[way]["save_seconds"] / ours["save_seconds"]
    return ratios


HEADS = {
    "wall_seconds": "wall s",
    "processor_seconds": "processor s",
    "blocked_seconds": "waited s",
    "save_seconds": "a save ms",
    "load_seconds": "load ms",
    "peak_bytes": "peak MiB",
}


def report(found: Run) -> str:
    """One table, for people: medians, with the lowest and the highest."""
    heads = ["part", "way", *HEADS.values(), "on disk", "result"]
    lines = [heads]
    for run in found["runs"]:
        cells = [run["part"], run["way"]]
        for key in HEADS:
            scale = 1 / MIB if key == "peak_bytes" else 1000 if key in ("save_seconds", "load_seconds") else 1
            cells.append(_cell(run.get(key), run.get(f"{key}_range"), scale))
        is_store = run["part"] == "store" and run["way"] != "nothing saved"
        cells += [("synced" if run["way"] in SYNCED else "later") if is_store else "", run["result"]]
        lines.append(cells)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    text += ["", *(f"{name:50} {ratio:6.2f}" for name, ratio in found["ratios"].items()), ""]
    text.append("versions: " + ", ".join(f"{name} {version}" for name, version in found["versions"].items()))
    text += [f"left out: {name}: {reason}" for name, reason in found["left_out"].items()]
    return "\n".join(text)


def _cell(value: float | None, spread: list[float] | None, scale: float) -> str:
    if value is None or spread is None or spread[1] == 0:
        return ""
    digits = 0 if scale != 1 else 2
    low, high = (f"{scale * end:.{digits}f}" for end in spread)
    return f"{scale * value:.{digits}f} ({low}-{high})"


PLOT = """
import json, sys
import matplotlib
matplotlib.use("Agg")
from matplotlib import pyplot

found = json.load(sys.stdin)
parts = [part for part in ("tape", "store") if any(run["part"] == part for run in found["runs"])]
titles = {"tape": "a wave forward and back", "store": "a transformer that is trained"}
figure, axes = pyplot.subplots(len(parts), 3, figsize=(15, 1 + 3.6 * len(parts)), squeeze=False, layout="constrained")
whats = [("wall_seconds", "wall time, s", 1), ("blocked_seconds", "of which the program waited, s", 1),
         ("peak_bytes", "peak memory beyond the program's, MiB", 1 << 20)]
for row, part in zip(axes, parts):
    runs = [run for run in found["runs"] if run["part"] == part][::-1]
    names = [run["way"] for run in runs]
    colors = ["#c05010" if name.startswith("outcrop") else "#8899aa" for name in names]
    for axis, (key, title, scale) in zip(row, whats):
        values = [run[key] / scale for run in runs]
        errors = [[(run[key] - run[key + "_range"][0]) / scale for run in runs],
                  [(run[key + "_range"][1] - run[key]) / scale for run in runs]]
        axis.barh(names, values, xerr=errors, color=colors, ecolor="#333333", capsize=2)
        axis.set_xlabel(title)
        axis.set_xlim(left=0)
        if axis is not row[0]:
            axis.set_yticklabels([])
    row[0].set_title(titles[part], loc="left")
figure.savefig(sys.argv[1], dpi=110)
"""


def plot(found: Run, path: Path, venv: str | os.PathLike[str] | None = None) -> bool:
    """Draws what was measured. Whether that was possible."""
    environment = Environment(Path(venv) if venv else cache())
    if not environment.install("matplotlib"):
        return False
    command = [str(environment.python), "-c", PLOT, str(path)]
    subprocess.run(command, input=json.dumps(found), text=True, check=True, env=environment.variables)
    return True
