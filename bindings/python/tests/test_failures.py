"""Versions that do not become durable: the program hears of each of them, once, whatever it does next."""

import gc
import subprocess
import sys
import warnings

import numpy as np
import outcrop
import pytest
from conftest import PATIENCE

# Room for one version of 1.5 MB.
OPEN = 'outcrop.Store(dir={"path": "checkpoints", "limit": "2 MiB"}, host="16 MiB", pin=False, in_flight=4, incremental=False)'


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return eval(OPEN)


def save_too_much(session):
    for version in (1, 2, 3, 4):
        while True:
            try:
                session.save(version, u=np.random.default_rng(version).random(190_000))
            except outcrop.Storage as error:
                yield error
            else:
                break


def names(error):
    return [version for version in range(1, 5) if f"version {version} of run has not reached" in str(error)]


def test_every_failed_version_is_reported_once(store):
    session = store.session("run")
    heard = [version for error in save_too_much(session) for version in names(error)]
    try:
        session.flush()
    except outcrop.Storage as error:
        heard += names(error)
    assert sorted(heard) == [2, 3, 4]
    assert session.versions == [1] and session.latest().number == 1
    session.flush()
    session.close()
    store.close()


def test_a_version_that_failed_may_be_saved_again_once_it_was_reported(store):
    session = store.session("run")
    noise = np.random.default_rng(1).random
    session.save(1, u=noise(190_000))
    session.save(2, u=noise(190_000))
    with pytest.raises(outcrop.Storage):
        session.wait(2)
    small = noise(1000)
    session.save(2, u=small)
    session.wait(2)
    with pytest.raises(outcrop.Exists):
        session.save(2, u=small)
    assert session.versions == [1, 2]
    np.testing.assert_array_equal(session[2]["u"], small)
    store.close()


def test_closing_names_all_that_failed(store):
    session = store.session("run")
    heard = [version for error in save_too_much(session) for version in names(error)]
    with pytest.raises(outcrop.Storage) as caught:
        store.close()
    assert sorted(heard + names(caught.value)) == [2, 3, 4]
    assert store.closed and session.closed
    store.close()


def test_what_is_dropped_unclosed_warns_and_says_what_failed(store, monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(args.exc_value))
    session = store.session("run")
    heard = [version for error in save_too_much(session) for version in names(error)]
    with pytest.warns(ResourceWarning, match="session 'run' was not closed"):
        del session
        gc.collect()
    assert sorted(heard + [version for error in told for version in names(error)]) == [2, 3, 4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with store.session("run"):
            pass
        store.close()
        del store
        gc.collect()
    assert len(told) == 1


PROGRAM = f"""
import sys, numpy as np, outcrop
session = {OPEN}.session("run")
failed = 0
for version in (1, 2, 3, 4):
    for attempt in range(9):
        try:
            session.save(version, u=np.random.default_rng(version).random(190_000))
            break
        except outcrop.Storage as error:
            print(error, file=sys.stderr)
print("the end")
"""


@pytest.mark.parametrize(("end", "code"), [("", 17), ("sys.exit(3)", 3), ("session.close()", 1)])
def test_a_program_whose_versions_failed_does_not_end_well(tmp_path, end, code):
    """Those that it was not told of, that is."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + end], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == code, done.stderr
    assert done.stdout == "the end\n" and names(done.stderr) == [2, 3, 4]


def test_a_program_that_was_told_ends_well(tmp_path):
    end = "\ntry:\n    session.flush()\nexcept outcrop.Storage as error:\n    print(error)"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + end], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
