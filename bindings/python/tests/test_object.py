"""Stores in an object store: what is saved there is read there, by the same calls."""

import os

import numpy as np
import pytest

import outcrop

STORE = {"host": "8 MiB", "pin": False}


@pytest.fixture
def bucket(monkeypatch, request):
    """An address of its own for each test."""
    server = os.environ.get("OUTCROP_TEST_OBJECT_SERVER")
    if not server:
        pytest.skip("no server of objects")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server}")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "outcrop-test-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "outcrop-test-secret")
    return f"s3://bucket/{request.node.name}"


def test_versions_are_saved_and_restored(bucket, tmp_path):
    field = np.arange(3 << 20, dtype=np.float64)
    with outcrop.Store(dir=tmp_path / "near", object=bucket, **STORE | {"host": "64 MiB"}) as store:
        session = store.session("heat")
        for step in range(3):
            field[step] = -1
            session.save(step, field=field)
        session.wait(2, 2)
    assert outcrop.versions("heat", bucket) == [0, 1, 2]
    assert np.array_equal(outcrop.read("heat", bucket)["field"], field)
    with outcrop.Store(object={"url": bucket, "keep_last": 2, "patience_seconds": 60}, **STORE) as store:
        session = store.session("heat")
        found = np.zeros_like(field)
        assert session.restore(field=found).number == 2
        assert np.array_equal(found, field)


def test_what_cannot_be_opened_says_what_to_do(bucket):
    with pytest.raises(outcrop.OutcropError, match='bucket "nowhere" does not exist'):
        outcrop.Store(object="s3://nowhere/run", **STORE)
    with pytest.raises(outcrop.Usage, match="write object ="):
        outcrop.Store(dir=bucket, **STORE)
    with pytest.raises(outcrop.OutcropError, match="does not exist"):
        outcrop.versions("heat", "s3://nowhere/run")


def test_checkpoints_of_pytorch_go_there(bucket):
    if not os.environ.get("OUTCROP_TEST_ALL"):
        pytest.importorskip("torch")
    import torch
    import torch.distributed.checkpoint as dcp

    from outcrop.dcp import StorageReader, StorageWriter

    saved = {"weight": torch.randn(500, 500), "step": 7}
    with StorageWriter("run", object=bucket, **STORE) as writer:
        dcp.save(saved, storage_writer=writer, checkpoint_id=3)
    loaded = {"weight": torch.zeros(500, 500), "step": 0}
    dcp.load(loaded, storage_reader=StorageReader("run", dir=bucket))
    assert torch.equal(loaded["weight"], saved["weight"]) and loaded["step"] == 7
