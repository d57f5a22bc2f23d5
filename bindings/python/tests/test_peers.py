"""The benchmark of peers: that every way does the same work, and what is said of it. Not how fast anything is."""

import importlib.util
import json
import os
import random
import subprocess
import sys

import pytest
from conftest import PATIENCE
from outcrop import peers
from outcrop._peers_work import NEEDS, STORES, TAPES

TAPE = {"bytes": 1 << 20, "count": 9, "host": 4 << 20}
STORE = {"width": 16, "layers": 1, "batch": 1, "steps": 4, "every": 2}


def measure(part, way, spec, directory):
    command = [sys.executable, "-m", "outcrop._peers_work", part, way, json.dumps(spec), str(directory)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def is_there(way):
    return all(importlib.util.find_spec(name) for name in [need.split(".")[0] for need in NEEDS.get(way, [])])


def test_every_way_to_keep_states_gives_the_same_image(tmp_path):
    ways = [way for way in (*TAPES, "pyrevolve") if way != "nothing stored" and is_there(way)]
    assert {"outcrop.Tape", "ring of 35 lines", "numpy.memmap"} <= set(ways)
    found = {way: measure("tape", way, TAPE, tmp_path) for way in ways}
    assert len({run["result"] for run in found.values()}) == 1, found
    assert all(run["wall_seconds"] > 0 and run["peak_bytes"] > 0 for run in found.values())
    assert list(tmp_path.iterdir()) == []
    assert measure("tape", "nothing stored", TAPE, tmp_path)["result"] is None


@pytest.mark.parametrize("way", [way for way in STORES if way not in ("torchsnapshot", "orbax", "safetensors")])
def test_every_way_to_save_a_model_gives_it_back(tmp_path, way):
    if not os.environ.get("OUTCROP_TEST_ALL"):
        pytest.importorskip("torch")
    run = measure("store", way, STORE, tmp_path)
    assert run["result"] == "as saved" and run["wall_seconds"] > 0


class Failing:
    """An environment in which one way fails, and seconds count up."""

    def __init__(self):
        self.left_out, self.calls = {}, []

    def measure(self, part, way, spec, directory):
        self.calls.append(way)
        if way == "zarr":
            raise RuntimeError("no such thing")
        return {"wall_seconds": float(len(self.calls)), "blocked_seconds": 0.5, "peak_bytes": 1 << 20, "result": "x"}


def test_rounds_are_interleaved_and_what_fails_is_left_out_and_named(tmp_path):
    environment, sizes = Failing(), peers.Sizes(TAPE, STORE, rounds=4)
    ways = [("tape", way) for way in ("nothing stored", "outcrop.Tape", "h5py", "zarr")]
    runs = peers._measured(environment, ways, sizes, tmp_path, random.Random(3))
    assert [run["way"] for run in runs] == ["nothing stored", "outcrop.Tape", "h5py"]
    assert environment.calls.count("zarr") == 1 and environment.calls.count("h5py") == 4
    rounds = [way for way in environment.calls if way != "zarr"]
    orders = {tuple(rounds[start : start + 3]) for start in range(0, 12, 3)}
    assert len(orders) > 1 and all(len(set(order)) == 3 for order in orders)
    low, high = runs[0]["wall_seconds_range"]
    assert low < runs[0]["wall_seconds"] < high
    found = {"runs": runs, "ratios": peers._ratios(runs), "versions": {"h5py": "3"}, "left_out": environment.left_out}
    report = peers.report(found)
    assert "left out: zarr: no such thing" in report and "versions: h5py 3" in report
    assert "outcrop.Tape: wall over nothing stored" in report
