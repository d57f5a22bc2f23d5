"""The storage against pyrevolve's own, with its single-level and its multi-level revolver."""

import os

import numpy as np
import pytest
from documented import code_of

if not os.environ.get("OUTCROP_TEST_ALL"):
    pytest.importorskip("pyrevolve")

import pyrevolve
from pyrevolve.storage import NumpyStorage

from outcrop.revolve import Storage

STEPS = 50
POINTS = 30_000
CHECKPOINTS = 6


class Run(pyrevolve.Checkpoint):
    """A nonlinear map of two coupled fields, and the adjoint of its steps."""

    def __init__(self):
        self.u = np.linspace(-1, 1, POINTS, dtype=np.float32).reshape(100, -1)
        self.v = np.cos(self.u)
        self.before = None
        self.adjoint = np.ones((2, *self.u.shape), np.float32)
        self.backward = []

    dtype = np.float32
    size = 2 * POINTS

    def get_data(self, timestep):
        return [self.u, self.v]

    def get_data_location(self, timestep):
        return [self.u, self.v]

    def forward(self):
        return _Operator(self._forward)

    def reverse(self):
        return _Operator(self._reverse)

    def _forward(self, t_start, t_end):
        for _ in range(t_start, t_end):
            self.before = self.u.copy(), self.v.copy()
            u, v = self.before
            self.u[...] = u + 0.01 * v * u
            self.v[...] = v - 0.01 * u * u

    def _reverse(self, t_start, t_end):
        assert t_end == t_start + 1
        self.backward.append(t_start)
        u, v = self.before
        a, b = self.adjoint.copy()
        self.adjoint[0] = a * (1 + np.float32(0.01) * v) - b * np.float32(0.02) * u
        self.adjoint[1] = a * np.float32(0.01) * u + b


class _Operator(pyrevolve.Operator):
    def __init__(self, apply):
        self._apply = apply

    def apply(self, **kwargs):
        self._apply(**kwargs)


def ours(tmp_path, count=CHECKPOINTS, **options):
    limit = {"path": str(tmp_path), "limit": "64 MiB"}
    return Storage(Run.size, count, Run.dtype, host=2 * Run.size * 4 + (1 << 16), dir=limit, pin=False, **options)


def adjoint(revolver, run):
    revolver.apply_forward()
    revolver.apply_reverse()
    assert run.backward == list(reversed(range(STEPS)))
    return run.adjoint.tobytes(), run.u.tobytes(), run.v.tobytes()


def test_a_single_level(tmp_path):
    def revolver(run):
        return pyrevolve.Revolver(run, run.forward(), run.reverse(), CHECKPOINTS, STEPS)

    run = Run()
    expected = adjoint(revolver(run), run)

    run = Run()
    on_tape = revolver(run)
    on_tape.resetStorageList()
    storage = ours(tmp_path, profiler=on_tape.profiler)
    on_tape.addStorage(storage)
    assert adjoint(on_tape, run) == expected
    assert storage.tape.stats()["reads"] > 0
    assert len(storage.tape.keys()) <= CHECKPOINTS
    storage.close()


def test_several_levels(tmp_path):
    def revolver(run, storages):
        return pyrevolve.MultiLevelRevolver(run, run.forward(), run.reverse(), STEPS, storages)

    run = Run()
    theirs = [NumpyStorage(run.size, 3, run.dtype), NumpyStorage(run.size, CHECKPOINTS, run.dtype, wd=2, rd=2)]
    expected = adjoint(revolver(run, theirs), run)

    run = Run()
    storages = [NumpyStorage(run.size, 3, run.dtype), ours(tmp_path, wd=2, rd=2)]
    assert adjoint(revolver(run, storages), run) == expected
    assert storages[1].tape.stats()["reads"] > 0
    assert storages[1].tape.keys() == []
    storages[1].close()


def test_as_a_stack(tmp_path):
    storage = ours(tmp_path, count=2)
    first, second = np.full(8, 1.0), np.full((2, 4), 2.0)
    target = np.zeros(8), np.zeros((2, 4))
    storage.push([first, second])
    storage.push([first * 10, second * 10])
    assert storage.isFull()
    with pytest.raises(ValueError, match="made for 2 checkpoints"):
        storage.push([first, second])
    storage.peek(target)
    assert target[0][0] == 10 and target[1][1, 3] == 20
    storage.pop(target)
    storage.pop(target)
    assert target[0][0] == 1 and target[1][1, 3] == 2
    assert storage.isEmpty()
    with pytest.raises(ValueError, match="empty"):
        storage.pop(target)
    storage.save(0, [first])
    with pytest.raises(ValueError, match="1 arrays"):
        storage.load(0, target)
    storage.close()


def test_the_code_of_the_documentation(run):
    printed = run(code_of("pyrevolve"))
    assert printed.split() == [str(step) for step in reversed(range(100))]
