"""The executor against every schedule of checkpoint_schedules: the adjoint of a small nonlinear equation, bit by bit."""

import os

import numpy as np
import pytest
from documented import code_of

if not os.environ.get("OUTCROP_TEST_ALL"):
    pytest.importorskip("checkpoint_schedules")

from checkpoint_schedules import (
    DiskRevolve,
    HRevolve,
    MixedCheckpointSchedule,
    MultistageCheckpointSchedule,
    NoneCheckpointSchedule,
    PeriodicDiskRevolve,
    Revolve,
    SingleDiskStorageSchedule,
    SingleMemoryStorageSchedule,
    StorageType,
    TwoLevelCheckpointSchedule,
)

from outcrop.schedules import Executor

STEPS = 60
POINTS = 20_000
DT, DX, NU = 2e-3, 1e-2, 1e-3

OFFLINE = {
    "revolve": lambda: Revolve(STEPS, 5),
    "multistage": lambda: MultistageCheckpointSchedule(STEPS, 3, 4),
    "multistage, memory only": lambda: MultistageCheckpointSchedule(STEPS, 5, 0),
    "multistage, disk only": lambda: MultistageCheckpointSchedule(STEPS, 0, 5),
    "hrevolve": lambda: HRevolve(STEPS, 3, 5),
    "disk revolve": lambda: DiskRevolve(STEPS, 4),
    "periodic disk revolve": lambda: PeriodicDiskRevolve(STEPS, 4),
    "mixed on disk": lambda: MixedCheckpointSchedule(STEPS, 6),
    "mixed in memory": lambda: MixedCheckpointSchedule(STEPS, 6, storage=StorageType.RAM),
}
ONLINE = {
    "all in memory": SingleMemoryStorageSchedule,
    "all on disk": SingleDiskStorageSchedule,
    "all on disk, moved": lambda: SingleDiskStorageSchedule(move_data=True),
    "two levels": lambda: TwoLevelCheckpointSchedule(7, 3),
    "two levels, memory": lambda: TwoLevelCheckpointSchedule(9, 2, binomial_storage=StorageType.RAM),
}


class Burgers:
    """Burgers' equation, explicit, on a ring; and the exact adjoint of its steps."""

    def __init__(self):
        x = np.linspace(0, 2 * np.pi, POINTS, endpoint=False)
        self.u = np.sin(x) + 0.1 * np.cos(7 * x)
        self.adjoint_u = None
        self.steps_made = 0

    def forward(self, step, u):
        assert u is self.u
        self.steps_made += 1
        slope = (np.roll(u, -1) - np.roll(u, 1)) / (2 * DX)
        bend = (np.roll(u, -1) - 2 * u + np.roll(u, 1)) / DX**2
        u += DT * (NU * bend - u * slope) * (1 + 0.01 * np.sin(step))

    def start_adjoint(self):
        self.adjoint_u = self.u.copy()

    def reverse(self, step, u):
        a = self.adjoint_u * DT * (1 + 0.01 * np.sin(step))
        slope = (np.roll(u, -1) - np.roll(u, 1)) / (2 * DX)
        product = -a * u / (2 * DX)
        self.adjoint_u += NU * (np.roll(a, 1) - 2 * a + np.roll(a, -1)) / DX**2 - a * slope
        self.adjoint_u += np.roll(product, 1) - np.roll(product, -1)


@pytest.fixture(scope="module")
def expected():
    """The adjoint with everything in memory."""
    run = Burgers()
    states = []
    for step in range(STEPS):
        states.append(run.u.copy())
        run.forward(step, run.u)
    run.start_adjoint()
    for step in reversed(range(STEPS)):
        run.reverse(step, states[step])
    return run


@pytest.fixture
def tape(tmp_path):
    """A tape with memory for twelve states, so that many schedules need its directory."""
    return {"host": 12 * POINTS * 8 + (1 << 16), "dir": {"path": str(tmp_path), "limit": "64 MiB"}, "pin": False}


def check(run, expected):
    assert run.u.tobytes() != Burgers().u.tobytes()
    assert run.adjoint_u.tobytes() == expected.adjoint_u.tobytes()


@pytest.mark.filterwarnings("ignore:Numba not available")
@pytest.mark.parametrize("name", OFFLINE)
def test_a_schedule_of_known_length_gives_the_same_adjoint(name, expected, tape):
    run = Burgers()
    with Executor(OFFLINE[name](), run.u, run.forward, run.reverse, **tape) as executor:
        assert executor.forward() == STEPS
        assert run.u.tobytes() == expected.u.tobytes()
        run.start_adjoint()
        executor.reverse()
        check(run, expected)
        assert run.steps_made > STEPS
        # Every read was foreseen, and nothing is left.
        assert executor.tape.stats()["misses"] == 0
        assert executor.tape.keys() == []
        with pytest.raises(RuntimeError, match="no further adjoint"):
            executor.reverse()


@pytest.mark.parametrize("name", ONLINE)
def test_a_schedule_of_unknown_length_gives_the_same_adjoint(name, expected, tape):
    run = Burgers()
    with Executor(ONLINE[name](), run.u, run.forward, run.reverse, **tape) as executor:
        assert executor.forward(until=lambda: run.steps_made == STEPS) == STEPS
        run.start_adjoint()
        executor.reverse()
        check(run, expected)
        if "all" in name:
            # Sixty states do not fit where twelve do.
            assert executor.tape.stats()["layers"][1]["written_bytes"] > 30 * POINTS * 8
        if "moved" in name:
            assert executor.tape.keys() == []
            return
        run.u[...] = expected.u
        run.start_adjoint()
        executor.reverse()
        check(run, expected)


def test_several_arrays_and_what_the_adjoint_needs_of_them(expected, tape):
    """The adjoint gets an array that is not part of the state."""
    run = Burgers()
    state = {"u": run.u, "time": np.zeros(1)}
    seen = []

    def forward(step, state):
        run.forward(step, state["u"])
        state["time"] += DT

    def reverse(step, past):
        seen.append(past["time"][0])
        run.reverse(step, past["half"] * 2)

    def needed(step, state):
        return {"half": state["u"] / 2, "time": state["time"]}

    with Executor(HRevolve(STEPS, 3, 5), state, forward, reverse, needed=needed, **tape) as executor:
        executor.forward()
        run.start_adjoint()
        executor.reverse()
    check(run, expected)
    times = np.cumsum(np.full(STEPS, DT)) - DT
    np.testing.assert_allclose(seen, times[::-1], atol=1e-12)


def test_no_adjoint(tape):
    run = Burgers()
    with Executor(NoneCheckpointSchedule(), run.u, run.forward, run.reverse, **tape) as executor:
        assert executor.forward(STEPS) == STEPS
        with pytest.raises(RuntimeError, match="no further adjoint"):
            executor.reverse()


def test_what_makes_no_sense_is_said(tape):
    run = Burgers()
    with Executor(Revolve(STEPS, 5), run.u, run.forward, run.reverse, **tape) as executor:
        with pytest.raises(RuntimeError, match="call forward"):
            executor.reverse()
        with pytest.raises(ValueError, match="made for 60 steps"):
            executor.forward(STEPS + 1)
    with Executor(SingleMemoryStorageSchedule(), run.u, run.forward, run.reverse, **tape) as executor:
        with pytest.raises(ValueError, match="either steps or until"):
            executor.forward()


def test_the_code_of_the_documentation(run):
    printed = run(code_of("checkpoint_schedules"))
    total, reads = printed.split(maxsplit=1)
    assert float(total) > 100_000 and reads.startswith("[")
