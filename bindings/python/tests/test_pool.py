"""Pools: arrays that are ordinary memory, and of which one call makes a version durable."""

import os
import subprocess
import sys

import numpy as np
import outcrop
import pytest
from outcrop import Pool


def test_a_version_is_what_was_persisted(tmp_path):
    path = tmp_path / "a.pool"
    with Pool(path, versions=3) as pool:
        heat = pool.array("heat", (30, 40))
        steps = pool.array("steps", 10, np.int32)
        assert heat.shape == (30, 40) and heat.dtype == np.float64 and not heat.any()
        heat += 1.5
        steps[3] = 7
        first = pool.persist()
        heat[2, 3] = 99
        second = pool.persist()
        assert pool.versions == [first, second]
        old = pool.view(first)
        assert sorted(old) == ["heat", "steps"] and old["heat"].shape == (30, 40)
        assert (old["heat"] == 1.5).all() and old["steps"][3] == 7
        with pytest.raises(ValueError, match="read-only"):
            old["heat"][0, 0] = 1
        pool.restore(first)
        assert heat[2, 3] == 1.5, "the array itself is as it was"
        heat[0, 0] = -1  # Not persisted.
        del heat, steps, old
    with Pool(path) as pool:
        assert pool.array("heat", (30, 40))[2, 3] == 99
        assert repr(pool) == f"<outcrop.Pool, versions {[first, second]}>"
    assert repr(pool) == "<outcrop.Pool, closed>"


def test_random_programs_beside_a_model(tmp_path):
    rng = np.random.default_rng(1)
    with Pool(tmp_path / "a.pool", versions=4) as pool:
        arrays = {name: pool.array(name, 20_000, dtype) for name, dtype in [("a", "f4"), ("b", "c16"), ("c", "u1")]}
        durable = {}
        for _ in range(200):
            name = rng.choice(list(arrays))
            match rng.integers(4):
                case 0 | 1:
                    start = rng.integers(20_000)
                    arrays[name][start : start + rng.integers(3000)] = rng.integers(200)
                case 2:
                    durable[pool.persist()] = {name: array.copy() for name, array in arrays.items()}
                case 3 if pool.versions:
                    version = rng.choice(pool.versions)
                    pool.restore(version)
                    for name, array in arrays.items():
                        assert np.array_equal(array, durable[version][name])
            for version in pool.versions:
                for name, array in pool.view(version).items():
                    assert np.array_equal(array, durable[version][name]) and array.dtype == arrays[name].dtype


@pytest.mark.parametrize("shape", [(), 0, 7, (2, 3), (2, 3, 4), (2, 3, 4, 5), (1, 1, 6, 1, 2)])
def test_any_shape(tmp_path, shape):
    for fill in (5, None):
        with Pool(tmp_path / "a.pool") as pool:
            array = pool.array("a", shape)
            assert array.shape == (shape if isinstance(shape, tuple) else (shape,))
            if fill is not None:
                array[...] = fill
                pool.persist()
            assert (array == 5).all()
            del array


def test_a_killed_program_continues(tmp_path):
    program = """
import os, sys, outcrop
pool = outcrop.Pool(sys.argv[1])
count = pool.array("count", 100_000, "i8")
count += 1
pool.persist()
count += 1
os.kill(os.getpid(), 9)
"""
    for expected in range(1, 4):
        subprocess.run([sys.executable, "-c", program, tmp_path / "a.pool"], check=False)
        with Pool(tmp_path / "a.pool") as pool:
            assert (pool.view(pool.versions[-1])["count"] == expected).all()


def test_what_makes_no_sense_is_refused(tmp_path):
    path = tmp_path / "a.pool"
    with pytest.raises(outcrop.Usage, match="1 to 31 versions, not 0"):
        Pool(path, versions=0)
    with Pool(path) as pool:
        array = pool.array("a", 10)
        with pytest.raises(outcrop.Usage, match="open already"):
            pool.array("a", 10)
        with pytest.raises(outcrop.Busy, match="open already"):
            Pool(path)
        for dtype in ["U5", "M8[s]", "f2", "?", [("x", "f8")], object]:
            with pytest.raises(outcrop.OutcropError):
                pool.array("b", 10, dtype)
        with pytest.raises(outcrop.OutcropError):
            pool.array("b", -1)
        with pytest.raises(outcrop.Usage, match="too large|more elements"):
            pool.array("b", 2**62)
        with pytest.raises(outcrop.Missing, match="no version 7"):
            pool.restore(7)
        with pytest.raises(outcrop.Missing, match="no version 7"):
            pool.view(7)
        pool.persist()
    with pytest.raises(outcrop.Usage, match="closed"):
        pool.persist()
    pool.close()
    array[:] = 3  # It is still there.
    with pytest.raises(outcrop.Busy, match="open already"):
        Pool(path)
    del array
    with Pool(path) as pool, pytest.raises(outcrop.Usage, match="has the shape"):
        pool.array("a", 11)
    (tmp_path / "text").write_text("no pool" * 1000)
    with pytest.raises(outcrop.Damaged):
        Pool(tmp_path / "text")
    with pytest.raises(FileNotFoundError):
        Pool(tmp_path / "missing" / "a.pool")


def test_a_forked_child_is_refused(tmp_path):
    with Pool(tmp_path / "a.pool") as pool:
        array = pool.array("a", 10)
        child = os.fork()
        if child == 0:
            try:
                pool.persist()
            except outcrop.Usage:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        array[1] = 1
        pool.persist()
