"""Checkpoints of pyadjoint on a tape, with its own array type and schedules that use the disk."""

import gc
import os

import numpy as np
import pytest
from documented import code_of

if not os.environ.get("OUTCROP_TEST_ALL"):
    pytest.importorskip("pyadjoint")
    pytest.importorskip("numpy_adjoint")

from checkpoint_schedules import (
    HRevolve,
    MixedCheckpointSchedule,
    MultistageCheckpointSchedule,
    SingleDiskStorageSchedule,
    StorageType,
    TwoLevelCheckpointSchedule,
)
from numpy_adjoint import ndarray
from pyadjoint import Block, Control, ReducedFunctional, Tape, annotate_tape, continue_annotation, get_working_tape
from pyadjoint import pause_annotation, set_working_tape, stop_annotating
from pyadjoint.adjfloat import AdjFloat

from outcrop import adjoint

STEPS = 20
POINTS = 5000
M = np.linspace(0.05, 0.15, POINTS)

SCHEDULES = {
    "all on disk": SingleDiskStorageSchedule,
    "multistage": lambda: MultistageCheckpointSchedule(STEPS, 2, 3),
    "hrevolve": lambda: HRevolve(STEPS, 2, 3),
    "mixed": lambda: MixedCheckpointSchedule(STEPS, 4, storage=StorageType.DISK),
    "two levels": lambda: TwoLevelCheckpointSchedule(5, 2),
}


class StepBlock(Block):
    """u + dt m sin(u)"""

    def __init__(self, u):
        super().__init__()
        self.add_dependency(u)

    def recompute_component(self, inputs, block_variable, idx, prepared):
        u = np.asarray(inputs[0])
        return (u + M * np.sin(u)).view(ndarray)

    def evaluate_adj_component(self, inputs, adj_inputs, block_variable, idx, prepared=None):
        return adj_inputs[0] * (1 + M * np.cos(np.asarray(inputs[0])))


class CopyBlock(Block):
    """u, as a value of this step: after a step was recomputed, pyadjoint forgets what it got from the step before."""

    def __init__(self, u):
        super().__init__()
        self.add_dependency(u)

    def recompute_component(self, inputs, block_variable, idx, prepared):
        return np.array(inputs[0]).view(ndarray)

    def evaluate_adj_component(self, inputs, adj_inputs, block_variable, idx, prepared=None):
        return adj_inputs[0].copy()


class SumBlock(Block):
    """The sum of the squares."""

    def __init__(self, u):
        super().__init__()
        self.add_dependency(u)

    def recompute_component(self, inputs, block_variable, idx, prepared):
        return AdjFloat(np.sum(np.asarray(inputs[0]) ** 2))

    def evaluate_adj_component(self, inputs, adj_inputs, block_variable, idx, prepared=None):
        return 2 * np.asarray(inputs[0]) * adj_inputs[0]


def made_by(block):
    """The block's result, on the tape if it is recording."""
    inputs = [dependency.saved_output for dependency in block.get_dependencies()]
    with stop_annotating():
        result = block.recompute_component(inputs, None, 0, None)
    if annotate_tape():
        get_working_tape().add_block(block)
        block.add_output(result.create_block_variable())
    return result


@pytest.fixture
def tape():
    before = get_working_tape()
    tape = Tape()
    set_working_tape(tape)
    continue_annotation()
    yield tape
    pause_annotation()
    set_working_tape(before)


def array(values):
    return np.array(values).view(ndarray)


def gradients(tape):
    """The functional and its gradient at two initial states."""
    u = initial = array(np.cos(np.arange(POINTS)))
    for _ in tape.timestepper(iter(range(STEPS))):
        u = made_by(StepBlock(made_by(CopyBlock(u))))
    reduced = ReducedFunctional(made_by(SumBlock(u)), Control(initial))
    found = [np.asarray(reduced.derivative()).tobytes()]
    value = reduced(array(np.linspace(-1, 1, POINTS)))
    return [*found, float(value), np.asarray(reduced.derivative()).tobytes()]


@pytest.fixture(scope="module")
def expected():
    before = get_working_tape()
    tape = Tape()
    set_working_tape(tape)
    continue_annotation()
    try:
        return gradients(tape)
    finally:
        pause_annotation()
        set_working_tape(before)


@pytest.mark.filterwarnings("ignore:Numba not available")
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_gradient_is_the_same(name, tape, expected, tmp_path):
    limit = {"path": str(tmp_path), "limit": "64 MiB"}
    package = adjoint.enable(tape, ndarray, host=4 * POINTS * 8 + (1 << 16), dir=limit, pin=False)
    tape.enable_checkpointing(SCHEDULES[name]())
    assert gradients(tape) == expected
    stats = package.tape.stats()
    assert stats["saves"] > 0 and stats["reads"] > 0
    # Snapshots go when nothing refers to them any more.
    tape.clear_tape()
    gc.collect()
    assert package.tape.keys() == []
    package.tape.close()


def test_another_tape_is_left_alone(tape):
    adjoint.enable(Tape(), ndarray, host="1 MiB", pin=False)
    checkpoint = array([1.0, 2.0])._ad_create_checkpoint()
    assert isinstance(checkpoint, ndarray)


def test_the_code_of_the_documentation(run):
    printed = run(code_of("pyadjoint"))
    assert "outcrop.Tape" in printed
