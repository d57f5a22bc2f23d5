"""Restoring is all or nothing: whatever is damaged or does not fit, arrays are as they were, or a whole version."""

import logging
import multiprocessing

import numpy as np
import outcrop
import pytest
from conftest import PATIENCE


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "checkpoints"


def noise(seed, count=40_000):
    return np.random.default_rng(seed).random(count)


def open_session(directory, **settings):
    return outcrop.Store(dir=directory, host="8 MiB", pin=False, incremental=False, **settings).session("run")


def save_versions(directory, *versions):
    """Saves versions of two fields and a value; gives the fields of each."""
    with open_session(directory) as session:
        for version in versions:
            session.save(version, u=noise(version), v=noise(-version % 1000), about={"step": version})
            session.wait(version)


def damage(directory, values):
    """Changes one byte of every copy of these values."""
    content, count = values.tobytes(), 0
    for path in directory.rglob("*"):
        data = bytearray(path.read_bytes()) if path.is_file() else bytearray()
        at = data.find(content[:64])
        if at >= 0:
            data[at + len(content) // 2] ^= 1
            path.write_bytes(data)
            count += 1
    assert count


def targets(seed=50):
    return {"u": noise(seed), "v": noise(seed + 1)}


def test_a_damaged_region_changes_no_array(directory):
    save_versions(directory, 1)
    damage(directory, noise(999))
    with open_session(directory) as session:
        arrays = targets()
        for restore in (session.restore, session.version(1).into, outcrop.read("run", directory).into):
            with pytest.raises(outcrop.Damaged):
                restore(**arrays)
            for name, before in targets().items():
                np.testing.assert_array_equal(arrays[name], before)


def test_a_version_with_any_damage_is_passed_over_as_a_whole(directory, caplog):
    save_versions(directory, 1, 2)
    # Nobody asks for it.
    damage(directory, noise(998))
    with open_session(directory) as session, caplog.at_level(logging.WARNING, "outcrop"):
        u = np.zeros(40_000)
        version = session.restore(u=u)
        assert version.number == 1 and version["about"] == {"step": 1}
        np.testing.assert_array_equal(u, noise(1))
        np.testing.assert_array_equal(version["v"], noise(999))
        (skipped,) = version.skipped
        assert skipped.startswith("version 2: ") and "hash" in skipped
        assert any(skipped in record.getMessage() for record in caplog.records)


def test_what_does_not_fit_changes_no_array(directory):
    with open_session(directory) as session:
        session.save(1, u=noise(1).reshape(200, 200), v=noise(2).reshape(100, 400))
        session.wait(1)
        u, v = np.zeros((200, 200)), np.zeros((400, 100))
        for restore in (session.restore, session.version(1).into):
            with pytest.raises(outcrop.Usage, match="100"):
                restore(u=u, v=v)
            assert not u.any() and not v.any()


def test_an_older_version_that_does_not_fit_changes_no_array(directory):
    with open_session(directory) as session:
        for version, shape in ((1, (400, 100)), (2, (200, 200))):
            session.save(version, u=noise(version).reshape(shape), v=noise(version + 5))
            session.wait(version)
    damage(directory, noise(7))
    with open_session(directory) as session:
        u = np.zeros((200, 200))
        with pytest.raises(outcrop.Usage, match="version 1 of run cannot be restored here.*nothing was changed"):
            session.restore(u=u)
        assert not u.any()


def test_the_loop_goes_on_after_a_fallback(directory):
    """Twice: what was passed over is replaced, and the next run finds that."""
    save_versions(directory, 1, 2, 3)
    damage(directory, noise(3))
    damage(directory, noise(2))
    for expected in (1, 4):
        with open_session(directory) as session:
            arrays = targets()
            version = session.restore(**arrays)
            assert version.number == expected
            for step in range(version.number + 1, version.number + 4):
                arrays["u"] += 1
                session.save(step, **arrays, about=step)
            session.flush()
            np.testing.assert_array_equal(session.latest()["u"], arrays["u"])
            assert session.versions == list(range(1, expected + 4))


def test_a_program_goes_on_from_an_older_version(directory):
    with open_session(directory) as session:
        for version in (1, 2, 3, 4):
            session.save(version, u=noise(version))
        u = np.zeros(40_000)
        session.version(2).into(u=u)
        assert session.versions == [1, 2, 3, 4], "to restore removes nothing"
        session.save(3, u=u + 1)
        assert session.versions == [1, 2, 3]
        np.testing.assert_array_equal(session.latest()["u"], noise(2) + 1)
        # What is there and was not left behind is refused as ever.
        for version in (2, 3):
            with pytest.raises(outcrop.Exists):
                session.save(version, u=u)
        # A higher number leaves the others alone.
        session.version(1).into(u=u)
        session.save(9, u=u)
        assert session.versions == [1, 2, 3, 9]


def test_a_manifest_that_cannot_be_read_is_passed_over_and_replaced(directory, caplog):
    save_versions(directory, 1, 2)
    (manifest,) = [path for path in directory.rglob("*") if path.is_file() and path.name == f"version-{2:020}"]
    manifest.write_bytes(manifest.read_bytes()[:-5])
    with open_session(directory) as session, caplog.at_level(logging.WARNING, "outcrop"):
        arrays = targets()
        version = session.restore(**arrays)
        assert version.number == 1 and len(version.skipped) == 1 and caplog.records
        session.save(2, **arrays)
        session.wait(2)
        again = session.restore(**arrays)
        assert again.number == 2 and again.skipped == (), "the damaged one is gone"
    with open_session(directory) as session:
        assert session.restore(**targets()).number == 2


def test_what_was_forgotten_is_not_passed_over(directory):
    save_versions(directory, 1)
    (manifest,) = directory.rglob(f"version-{1:020}")
    manifest.write_bytes(manifest.read_bytes()[:-5])
    with open_session(directory) as session:
        with pytest.raises(outcrop.Damaged):
            session.restore(**targets())
        session.rewind()
        assert session.restore(**targets()) is None


def rank(number, directory, expected):
    """One process of a run, which restores, and saves the next versions."""
    ranks = {"dir": directory / "ranks", "rank": number, "count": 2}
    with outcrop.Store(dir=directory / "checkpoints", ranks=ranks, host="8 MiB", pin=False) as store:
        session = store.session("run")
        u, v = np.zeros(40_000), np.zeros(3)
        version = session.restore(u=u, v=v)
        assert (version and version.number) == expected
        if version:
            np.testing.assert_array_equal(u, noise(100 * version.number + number))
        for step in range((expected or 0) + 1, (expected or 0) + 4):
            session.save(step, u=noise(100 * step + number), v=np.ones(3), other=noise(7000 + 10 * step + number))
        session.flush()


def run_ranks(directory, expected):
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=rank, args=(number, directory, expected)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0, 0]


def test_ranks_fall_back_together_and_go_on(tmp_path):
    run_ranks(tmp_path, None)
    # What one rank has of the newest version, and nobody asks for.
    damage(tmp_path / "checkpoints", noise(7031))
    run_ranks(tmp_path, 2)
    assert outcrop.versions("run", tmp_path / "checkpoints") == [1, 2, 3, 4, 5]
    run_ranks(tmp_path, 5)
