"""PyTorch's distributed checkpoints in a store: one process, several processes, and in the background."""

import concurrent.futures
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from conftest import PATIENCE
from documented import code_of

if not os.environ.get("OUTCROP_TEST_ALL"):
    pytest.importorskip("torch")

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import outcrop
from outcrop.dcp import Stager, StorageReader, StorageWriter, _region

# PyTorch says so at every save of a single process, and of deprecated parts of its own.
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]

STORE = {"host": "8 MiB", "pin": False}


class Training:
    """A model and its optimizer after some steps."""

    def __init__(self, seed, width=128):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 3))
        self.model.register_parameter("scale", nn.Parameter(torch.randn(7, dtype=torch.bfloat16)))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.width = width
        self.step()

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(16, self.width)).square().sum() + self.model.scale.float().square().sum()
        loss.backward()
        self.optimizer.step()

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "epoch": 7, "empty": torch.zeros(0, 3), "note": ["a", {"b": 2}]}

    def load(self, reader, **options):
        state = self.state()
        dcp.load(state, storage_reader=reader, **options)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return state

    def tensors(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        moments = [value for state in optimizer["state"].values() for value in state.values()]
        return [tensor.clone() for tensor in (*model.values(), *moments)]


def same(found, expected):
    assert len(found) == len(expected) > 10
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_saved_and_loaded(tmp_path):
    training = Training(1)
    expected = {}
    with StorageWriter("run", dir=str(tmp_path), **STORE) as writer:
        for version in (3, 8):
            training.step()
            dcp.save(training.state(), storage_writer=writer, checkpoint_id=version)
            expected[version] = training.tensors()
            # It is there when `save` returns.
            assert outcrop.versions("run", tmp_path)[-1] == version
        # The next number, where none is given.
        training.step()
        dcp.save(training.state(), storage_writer=writer)
        expected[9] = training.tensors()
        with pytest.raises(dcp.api.CheckpointException, match="not above 9"):
            dcp.save(training.state(), storage_writer=writer, checkpoint_id=9)
    reader = StorageReader("run", dir=str(tmp_path))
    other = Training(2)
    for version, options in ((9, {}), (3, {"checkpoint_id": 3}), (8, {"checkpoint_id": "8"}), (9, {})):
        assert not same(other.tensors(), expected[version])
        state = other.load(reader, **options)
        assert same(other.tensors(), expected[version])
        assert (state["epoch"], state["note"]) == (7, ["a", {"b": 2}])
    with pytest.raises(dcp.api.CheckpointException, match="no complete checkpoint 4"):
        other.load(reader, checkpoint_id=4)
    with pytest.raises(ValueError, match="has a number"):
        other.load(reader, checkpoint_id="latest")


def test_in_the_background(tmp_path):
    """What is saved is what was there when async_save returned, although training goes on."""
    training = Training(1)
    expected, future = [], None
    with StorageWriter("run", dir=str(tmp_path), **STORE) as writer:
        for version in range(4):
            training.step()
            expected.append(training.tensors())
            if future is not None:
                future.result()
            future = dcp.async_save(training.state(), storage_writer=writer, checkpoint_id=version)
            for parameter in training.model.parameters():
                parameter.data.mul_(1.5)
        future.result()
    other = Training(2)
    for version in range(4):
        other.load(StorageReader("run", dir=str(tmp_path)), checkpoint_id=version)
        assert same(other.tensors(), expected[version])


class Held(StorageWriter):
    """A writer that waits before it reads what it was given, in whatever thread, until it is told to go on."""

    def __init__(self, name, **store):
        super().__init__(name, **store)
        self.may_go_on = threading.Event()

    def write_data(self, plan, planner):
        assert self.may_go_on.wait(PATIENCE)
        return super().write_data(plan, planner)


def test_what_changes_when_async_save_has_returned_is_saved_as_it_was(tmp_path):
    """PyTorch's default stagers pass tensors of the processor on as they are: pytorch#144657."""
    base = torch.arange(24.0).reshape(4, 6)
    state = {
        "plain": torch.arange(100_000.0),
        "parameter": nn.Parameter(torch.ones(3, 5)),
        "half": torch.full((7,), 2.0, dtype=torch.bfloat16),
        "number": torch.tensor(5.0),
        "whole": base,
        "columns": base[:, ::2],
        "turned": base.T,
        "nested": {"list": [torch.zeros(3, dtype=torch.int64), {"deep": torch.ones(2, 2)}]},
        "note": {"epochs": [1, 2]},
    }

    def tensors(value):
        if isinstance(value, torch.Tensor):
            return [value.detach()]
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
        return [tensor for item in items for tensor in tensors(item)]

    expected = [tensor.clone() for tensor in tensors(state)]
    with Held("run", dir=str(tmp_path), **STORE) as writer:
        future = dcp.async_save(state, storage_writer=writer, checkpoint_id=1)
        assert not future.done()
        for tensor in tensors(state):
            tensor.add_(77)
        state["note"]["epochs"].append(3)
        del state["parameter"]
        writer.may_go_on.set()
        future.result()
    state["parameter"] = nn.Parameter(torch.zeros(3, 5))
    state = {name: state[name] for name in ("plain", "parameter", *list(state)[1:-1])}
    dcp.load(state, storage_reader=StorageReader("run", dir=str(tmp_path)))
    # `whole` shares its memory with `columns` and `turned`: each was saved, and all of them agree.
    assert all(torch.equal(found, saved) for found, saved in zip(tensors(state), expected, strict=True))
    assert state["note"] == {"epochs": [1, 2]}


def full(tmp_path):
    """A writer whose directory has no room for `LARGE`."""
    return StorageWriter("run", dir={"path": str(tmp_path / "store"), "limit": "2 MiB"}, incremental=False, **STORE)


SMALL = {"a": torch.rand(100)}
LARGE = {"a": torch.rand(1_000_000)}


def ended(future):
    """Waits until a save in the background has ended, without asking how."""
    concurrent.futures.wait([future], PATIENCE)


@pytest.mark.parametrize("call", ["async_save", "save", "close", "rewind"])
def test_a_failure_that_nobody_has_seen_is_raised_by_the_next_call(tmp_path, call):
    writer = full(tmp_path)
    ended(dcp.async_save(LARGE, storage_writer=writer, checkpoint_id=1))
    calls = {
        "async_save": lambda: dcp.async_save(SMALL, storage_writer=writer, checkpoint_id=2),
        "save": lambda: dcp.save(SMALL, storage_writer=writer, checkpoint_id=2),
        "close": writer.close,
        "rewind": lambda: writer.rewind(0),
    }
    with pytest.raises(dcp.api.CheckpointException, match="limit"):
        calls[call]()
    # Once, and nothing was saved by it.
    dcp.async_save(SMALL, storage_writer=writer, checkpoint_id=2).result()
    writer.close()
    assert outcrop.versions("run", tmp_path / "store") == [2]


def test_a_failure_that_the_program_has_seen_is_not_raised_again(tmp_path):
    with full(tmp_path) as writer:
        future = dcp.async_save(LARGE, storage_writer=writer, checkpoint_id=1)
        with pytest.raises(dcp.api.CheckpointException, match="limit"):
            future.result()
        dcp.async_save(SMALL, storage_writer=writer, checkpoint_id=2).result()
    assert outcrop.versions("run", tmp_path / "store") == [2]


def test_saves_go_one_after_the_other(tmp_path):
    with Held("run", dir=str(tmp_path), **STORE) as writer:
        futures = [dcp.async_save({"a": torch.full((9,), 1.0)}, storage_writer=writer)]
        release = threading.Timer(0.2, writer.may_go_on.set)
        release.start()
        futures += [dcp.async_save({"a": torch.full((9,), float(number))}, storage_writer=writer) for number in (2, 3)]
        # Each but the last has ended when the next one begins.
        assert [future.done() for future in futures[:2]] == [True, True]
        dcp.save({"a": torch.full((9,), 4.0)}, storage_writer=writer)
        assert futures[2].done()
    for version in range(4):
        found = {"a": torch.zeros(9)}
        dcp.load(found, storage_reader=StorageReader("run", dir=str(tmp_path)), checkpoint_id=version)
        assert found["a"].tolist() == [version + 1.0] * 9


def test_a_series_is_verified_once_however_many_tensors_it_has(tmp_path, monkeypatch):
    tied = torch.arange(60.0)
    state = {f"t{number}": torch.full((5,), float(number)) for number in range(20)} | {"tied": tied, "again": tied}
    with StorageWriter("run", dir=str(tmp_path), **STORE) as writer:
        dcp.save(state, storage_writer=writer)
    into, calls = outcrop.Version.into, []
    monkeypatch.setattr(outcrop.Version, "into", lambda version, **targets: calls.append(targets) or into(version, **targets))
    memory = torch.zeros(60)
    found = {f"t{number}": torch.zeros(5) for number in range(20)} | {"tied": memory, "again": memory}
    dcp.load(found, storage_reader=StorageReader("run", dir=str(tmp_path)))
    assert all(torch.equal(found[name], state[name]) for name in state)
    assert len(calls) == 1


def test_the_stager_uses_the_same_memory_again(tmp_path):
    weight = torch.randn(1000, 1000)
    state = {"a": weight, "again": {"tied": weight}, "part": weight[:, ::2], "list": [torch.ones(()), 3, "text"]}
    stager = Stager(host="8 MiB", pin=False, patience_seconds=1)
    places = set()
    for _ in range(3):
        staged = stager.stage(state)
        assert torch.equal(staged["part"], state["part"]) and torch.equal(staged["list"][0], torch.ones(()))
        assert staged["list"][1:] == [3, "text"]
        assert staged["a"].data_ptr() == staged["again"]["tied"].data_ptr() != weight.data_ptr()
        before = weight.clone()
        weight.add_(1)
        assert torch.equal(staged["a"], before)
        places.add(staged["a"].data_ptr())
        del staged
    assert len(places) < 3
    # Two copies do not fit, and nobody gives the first one back.
    held = [stager.stage(state)]
    with pytest.raises(outcrop.OutcropError):
        stager.stage(state)
    held.clear()
    stager.close()


def test_the_stager_grows_with_the_state():
    """Optimizers have nothing to save before their first step."""
    stager = Stager(pin=False)
    first = stager.stage({"a": torch.ones(1000)})
    state = {"a": torch.full((1000,), 2.0), "moments": torch.arange(3_000_000.0)}
    second = stager.stage(state)
    assert torch.equal(second["moments"], state["moments"])
    assert torch.equal(first["a"], torch.ones(1000))
    stager.close()
    assert torch.equal(second["a"], state["a"])


def test_the_stager_waits_for_memory():
    state = {"a": torch.ones(1_000_000)}
    stager = Stager(host="6 MiB", pin=False)
    held = [stager.stage(state)]
    is_waiting = threading.Event()

    def let_go():
        is_waiting.wait()
        time.sleep(0.1)
        held.clear()

    other = threading.Thread(target=let_go)
    other.start()
    is_waiting.set()
    assert torch.equal(stager.stage(state)["a"], state["a"])
    other.join()
    stager.close()


def test_another_process_is_refused(tmp_path):
    with StorageWriter("run", dir=str(tmp_path), **STORE) as writer, pytest.raises(ValueError, match="THREAD"):
        pickle.dumps(writer)


def test_with_another_writer(tmp_path):
    training = Training(1)
    stager = Stager(pin=False)
    expected = training.tensors()
    future = dcp.async_save(training.state(), storage_writer=dcp.FileSystemWriter(tmp_path), async_stager=stager)
    training.step()
    future.result()
    stager.close()
    other = Training(2)
    other.load(dcp.FileSystemReader(tmp_path))
    assert same(other.tensors(), expected)


def test_only_the_last_one_is_kept_and_what_was_not_finished_does_not_count(tmp_path):
    training = Training(1)
    with StorageWriter("run", dir=str(tmp_path), keep_last=1, **STORE) as writer:
        for version in range(5):
            training.step()
            dcp.save(training.state(), storage_writer=writer, checkpoint_id=version)
        expected = training.tensors()
        # A rank has saved, and the coordinator was ended before it could say so.
        writer.finish = lambda metadata, results: None
        training.step()
        dcp.save(training.state(), storage_writer=writer, checkpoint_id=5)
    assert outcrop.versions("run", str(tmp_path)) == [4]
    assert 5 in outcrop.versions("run-rank-0", str(tmp_path))
    other = Training(2)
    other.load(StorageReader("run", dir=str(tmp_path)))
    assert same(other.tensors(), expected)
    # The number is free, and so is every one above a checkpoint to which one goes back.
    with StorageWriter("run", dir=str(tmp_path), keep_last=2, **STORE) as writer:
        dcp.save(training.state(), storage_writer=writer, checkpoint_id=5)
        assert outcrop.versions("run", tmp_path) == [4, 5]
        writer.rewind(4)
        dcp.save(other.state(), storage_writer=writer, checkpoint_id=5)
    training.load(StorageReader("run", dir=str(tmp_path)), checkpoint_id=5)
    assert same(training.tensors(), expected)


def test_a_checkpoint_that_lacks_a_rank_is_passed_over(tmp_path):
    with StorageWriter("run", dir=str(tmp_path), **STORE) as writer:
        for version in (1, 2):
            dcp.save({"a": torch.full((9,), float(version))}, storage_writer=writer, checkpoint_id=version)
    with outcrop.Store(dir=str(tmp_path), **STORE).session("run-rank-0") as session:
        session.rewind(1)
    found = {"a": torch.zeros(9)}
    dcp.load(found, storage_reader=StorageReader("run", dir=str(tmp_path)))
    assert found["a"].tolist() == [1.0] * 9


def test_any_name(tmp_path):
    names = ["a/b", "x" * 300, "tab\there", "ünï.cødé", "..", "plain", "plain@1"]
    state = {name: torch.full((3, 2), float(index)) for index, name in enumerate(names)}
    with StorageWriter("run", dir=str(tmp_path), **STORE) as writer:
        dcp.save(state, storage_writer=writer)
    found = {name: torch.zeros(3, 2) for name in names}
    dcp.load(found, storage_reader=StorageReader("run", dir=str(tmp_path)))
    assert all(torch.equal(found[name], state[name]) for name in names)
    # Parts of one tensor have names of their own.
    assert len({_region(MetadataIndex("plain", offset)) for offset in (None, (0, 1), (1, 0), (10, 0))}) == 4


def test_a_changed_byte_is_an_error(tmp_path):
    training = Training(1, width=512)
    with StorageWriter("run", dir=str(tmp_path), **STORE) as writer:
        dcp.save(training.state(), storage_writer=writer, checkpoint_id=1)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    assert "run-rank-0" in str(largest)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    with pytest.raises(dcp.api.CheckpointException, match="(?s)Damaged"):
        Training(2, width=512).load(StorageReader("run", dir=str(tmp_path)))


RANKS = """
    import sys
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from outcrop.dcp import StorageReader, StorageWriter

    what, dir, rank, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{dir}.{what}", rank=rank, world_size=count)
    mesh = init_device_mesh("cpu", (count,))

    def state(factor):
        # A sharded tensor, a replicated one, one that every rank has as its own, and no tensor.
        whole = torch.arange(101 * 64, dtype=torch.float32).reshape(101, 64) * factor
        return {
            "sharded": distribute_tensor(whole, mesh, [Shard(0)]),
            "columns": distribute_tensor(whole, mesh, [Shard(1)]),
            "replicated": distribute_tensor(whole, mesh, [Replicate()]),
            "plain": whole.clone(),
            "step": 17 if factor else 0,
        }

    if what == "save":
        with StorageWriter("run", dir=dir, host="8 MiB", pin=False) as writer:
            dcp.save(state(2), storage_writer=writer, checkpoint_id=5)
            saved = state(3)
            future = dcp.async_save(saved, storage_writer=writer, checkpoint_id=6)
            saved["plain"].zero_()
            saved["sharded"].to_local().zero_()
            future.result()
            dist.barrier()
    else:
        for version, factor in ((None, 3), (5, 2)):
            found = state(0)
            dcp.load(found, storage_reader=StorageReader("run", dir=dir), checkpoint_id=version)
            for name, expected in state(factor).items():
                if name == "step":
                    assert found[name] == 17, found[name]
                elif name == "plain":
                    assert torch.equal(found[name], expected), name
                else:
                    assert torch.equal(found[name].full_tensor(), expected.full_tensor()), name
    dist.destroy_process_group()
    print("done", rank)
"""


def run_ranks(what, tmp_path, count):
    code = textwrap.dedent(RANKS)
    command = [sys.executable, "-W", "ignore", "-c", code, what, str(tmp_path / "store")]
    ranks = [
        subprocess.Popen([*command, str(rank), str(count)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(count)
    ]
    try:
        outputs = [rank.communicate(timeout=PATIENCE)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for number, (rank, output) in enumerate(zip(ranks, outputs, strict=True)):
        assert rank.returncode == 0 and f"done {number}" in output, output


def test_four_processes_save_and_three_load(tmp_path):
    run_ranks("save", tmp_path, 4)
    assert outcrop.versions("run-rank-1", str(tmp_path / "store")) == [5, 6]
    run_ranks("load", tmp_path, 3)


def test_the_code_of_the_documentation(run, tmp_path):
    printed = run(code_of("PyTorch: distributed checkpoints"))
    assert outcrop.versions("run", tmp_path / "checkpoints") == [100, 200] and not printed
