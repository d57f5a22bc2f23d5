"""The table of hostile calls in docs/testing.md, on a tape and in a store."""

import os
import pathlib
import re
import signal
import threading

import numpy as np
import outcrop
import pytest

ROOT = pathlib.Path(__file__).parents[3]
VALUES = np.arange(1000.0)


@pytest.fixture
def tape(tmp_path):
    with outcrop.Tape(host="256 KiB", dir=tmp_path / "scratch", pin=False, patience_seconds=0.05) as tape:
        tape.save(1, VALUES)
        yield tape


@pytest.fixture
def session(tmp_path):
    with outcrop.Store(dir=tmp_path / "checkpoints", host="4 MiB", pin=False) as store:
        session = store.session("run")
        session.save(1, u=VALUES)
        session.flush()
        yield session


def refused(kind, call, hint=None):
    """The call fails with this error, and says why."""
    with pytest.raises(outcrop.OutcropError, match=hint) as caught:
        call()
    assert type(caught.value).__name__ == kind, repr(caught.value)


def in_child(call):
    """What a forked child makes of a call: 0 if it is refused as the parent's."""
    pid = os.fork()
    if pid == 0:
        try:
            call()
        except outcrop.Usage:
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_thread(call):
    """What a call gives in another thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def misaligned(values):
    """The same values at an odd address."""
    bytes_ = bytearray(values.nbytes + 1)
    array = np.frombuffer(bytes_, values.dtype, offset=1)
    array[:] = values
    assert array.ctypes.data % 2 or array.ctypes.data % values.itemsize
    return array


def among_signals(call):
    """Calls something while signals come all the time."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def damage(directory):
    """Changes a byte in the middle of each file."""
    for path in directory.rglob("*"):
        if path.is_file() and path.stat().st_size:
            data = bytearray(path.read_bytes())
            for at in range(0, len(data), 97):
                data[at] ^= 1
            path.write_bytes(data)


def wrong_handle_on_a_tape(tape, tmp_path):
    refused("WrongType", lambda: tape.take("1"))
    with pytest.raises(TypeError):
        outcrop.Tape.take(object(), 1)
    assert "1" not in tape and None not in tape


def wrong_handle_in_a_store(session, tmp_path):
    with outcrop.Tape(host="1 MiB", pin=False) as tape:
        refused("WrongType", lambda: outcrop.Session(tape, "run"), "Tape")
    refused("WrongType", lambda: session.wait("1"))
    refused("WrongType", lambda: outcrop.versions(5, tmp_path))


def closed_on_a_tape(tape, tmp_path):
    lent = tape.lend(2, 10)
    tape.close()
    for call in (lambda: tape.save(2, VALUES), lambda: tape.take(1), lambda: len(tape), lent.seal, tape.stats):
        refused("Usage", call, "this tape is closed")
    tape.close()


def closed_in_a_store(session, tmp_path):
    version = session[1]
    session.close()
    for call in (lambda: session.save(2, u=VALUES), lambda: session.restore(u=VALUES.copy()), lambda: len(session)):
        refused("Usage", call, "this session is closed")
    refused("Usage", lambda: version["u"], "this session is closed")
    session.close()


def forked_on_a_tape(tape, tmp_path):
    assert in_child(lambda: tape.save(2, VALUES)) == 0 and in_child(lambda: tape.take(1)) == 0
    np.testing.assert_array_equal(tape.take(1), VALUES)


def forked_in_a_store(session, tmp_path):
    assert in_child(lambda: session.save(2, u=VALUES)) == 0 and in_child(lambda: session[1]["u"]) == 0
    session.save(2, u=VALUES)
    session.flush()


def other_thread_on_a_tape(tape, tmp_path):
    np.testing.assert_array_equal(in_thread(lambda: tape.take(1)), VALUES)


def other_thread_in_a_store(session, tmp_path):
    in_thread(lambda: session.save(2, u=VALUES))
    np.testing.assert_array_equal(in_thread(lambda: session[2]["u"]), VALUES)
    in_thread(session.close)


def huge_on_a_tape(tape, tmp_path):
    refused("TooLarge", lambda: tape.save(2, np.zeros(40_000)))
    refused("TooLarge", lambda: tape.lend(2, (2**40, 2**40)))
    refused("Usage", lambda: tape.save(2**64, VALUES))
    refused("Usage", lambda: outcrop.Tape(host="1 MiB", helpers=2**40), "helpers")
    tape.save(2**64 - 1, VALUES)
    tape.discard(2**64 - 1)


def huge_in_a_store(session, tmp_path):
    refused("Usage", lambda: session.save(2**64 - 1, u=VALUES))
    refused("Usage", lambda: session.save(2**64, u=VALUES))
    refused("Usage", lambda: session.mark_dirty("u", 2**70))
    large = np.ones(1 << 20)  # twice as large as host memory
    session.save(2, u=large)
    np.testing.assert_array_equal(session[2]["u"], large)


def zero_on_a_tape(tape, tmp_path):
    tape.save(0, np.zeros((0, 3)))
    assert tape.take(0).shape == (0, 3)
    with tape.lend(0, 0, "f4") as empty:
        assert empty.size == 0
    refused("Usage", lambda: tape.save(2))
    refused("Usage", lambda: outcrop.Tape(host=0), "host")
    refused("Usage", lambda: tape.save(2, np.zeros(3, "V0")), "no length")


def zero_in_a_store(session, tmp_path):
    refused("Exists", lambda: session.save(0, u=VALUES))
    session.save(2, u=np.zeros((0, 3)))
    assert session[2]["u"].shape == (0, 3)
    refused("Usage", lambda: outcrop.Store(dir=tmp_path / "x", keep_last=0), "keep_last")


def misaligned_on_a_tape(tape, tmp_path):
    tape.save(2, misaligned(VALUES))
    found = tape.take(2)
    np.testing.assert_array_equal(found, VALUES)
    assert found.flags.aligned


def misaligned_in_a_store(session, tmp_path):
    session.save(2, u=misaligned(VALUES + 1))
    target = misaligned(np.zeros(1000))
    assert session.restore(u=target).number == 2
    np.testing.assert_array_equal(target, VALUES + 1)


def overlapping_on_a_tape(tape, tmp_path):
    tape.save(2, u=VALUES, v=VALUES[1:], w=np.broadcast_to(VALUES, (2, 1000)), x=VALUES[::-1])
    found = tape.take(2)
    np.testing.assert_array_equal(found["v"], VALUES[1:])
    np.testing.assert_array_equal(found["w"][1], VALUES)
    np.testing.assert_array_equal(found["x"], VALUES[::-1])


def overlapping_in_a_store(session, tmp_path):
    session.save(2, u=VALUES, v=VALUES[1:])
    memory = np.full(1500, 7.0)
    refused("Usage", lambda: session.restore(u=memory[:1000], v=memory[1:1000]), "same memory")
    assert (memory == 7).all()


def freed_on_a_tape(tape, tmp_path):
    values = VALUES.copy()
    tape.save(2, values)
    del values
    found = tape.take(2)
    tape.close()
    del tape
    np.testing.assert_array_equal(found, VALUES)


def freed_in_a_store(session, tmp_path):
    for version in range(2, 6):
        values = VALUES + version
        session.save(version, u=values)
        values[:] = 0
        del values
    session.flush()
    for version in range(2, 6):
        np.testing.assert_array_equal(session[version]["u"], VALUES + version)


def interrupted_on_a_tape(tape, tmp_path):
    def work():
        for key in range(10, 210):
            tape.save(key, VALUES + key)
        for key in reversed(range(10, 210)):
            np.testing.assert_array_equal(tape.take(key), VALUES + key)

    among_signals(work)


def interrupted_in_a_store(session, tmp_path):
    def work():
        for version in range(2, 30):
            session.save(version, u=VALUES + version)
        session.flush()
        np.testing.assert_array_equal(session[29]["u"], VALUES + 29)

    among_signals(work)


def full_on_a_tape(tape, tmp_path):
    with outcrop.Tape(host="256 KiB", pin=False, patience_seconds=0.05) as tape:
        tape.save(1, np.zeros(20_000))
        refused("Full", lambda: tape.save(2, np.zeros(20_000)))
        held = tape.take(1)
        refused("Held", lambda: tape.save(2, np.zeros(20_000)))
        del held
        tape.save(2, np.zeros(20_000))
        assert list(tape) == [2]


def full_in_a_store(session, tmp_path):
    with outcrop.Store(dir={"path": tmp_path / "small", "limit": "64 KiB"}, host="4 MiB", pin=False) as store:
        session = store.session("run")
        session.save(1, u=np.random.default_rng(1).random(1000))
        session.save(2, u=np.random.default_rng(2).random(100_000))
        with pytest.raises(outcrop.OutcropError, match="version 2 of run has not reached"):
            session.flush()
        assert session.versions == [1]
        session.flush()


def read_only_on_a_tape(tape, tmp_path):
    frozen = VALUES.copy()
    frozen.flags.writeable = False
    tape.save(2, frozen)
    with pytest.raises(ValueError, match="read-only"):
        tape.take(2)[0] = 1
    refused("Storage", lambda: outcrop.Tape(host="1 MiB", dir="/proc/outcrop"), "/proc/outcrop")


def read_only_in_a_store(session, tmp_path):
    frozen = VALUES.copy()
    frozen.flags.writeable = False
    session.save(2, u=frozen)
    refused("Usage", lambda: session.restore(u=frozen), "read-only")
    refused("Storage", lambda: outcrop.Store(dir="/proc/outcrop"), "/proc/outcrop")


def missing_on_a_tape(tape, tmp_path):
    for call in (lambda: tape.take(9), lambda: tape.get(9), lambda: tape[9], lambda: tape.discard(9)):
        refused("Missing", call, "9")
    assert tape.get(9, None) is None and 9 not in tape


def missing_in_a_store(session, tmp_path):
    for call in (lambda: session[9], lambda: session.wait(9), lambda: session[1]["v"]):
        refused("Missing", call)
    target = np.full(1000, 7.0)
    with pytest.raises(outcrop.OutcropError):
        session.restore(v=target)
    assert (target == 7).all() and session.get(9) is None
    with pytest.raises(FileNotFoundError):
        outcrop.read("run", tmp_path / "nowhere")


def damaged_on_a_tape(tape, tmp_path):
    for key in range(10, 100):
        tape.save(key, VALUES + key)
    damage(tmp_path / "scratch")
    outcomes = set()
    for key in range(10, 100):
        try:
            np.testing.assert_array_equal(tape.take(key), VALUES + key)
            outcomes.add("whole")
        except outcrop.Damaged:
            outcomes.add("damaged")
    assert outcomes == {"whole", "damaged"}


def damaged_in_a_store(session, tmp_path):
    session.close()
    damage(tmp_path / "checkpoints")
    with outcrop.Store(dir=tmp_path / "checkpoints", host="4 MiB", pin=False) as store:
        session, target = store.session("run"), np.full(1000, 7.0)
        refused("Damaged", lambda: session.restore(u=target))
        assert (target == 7).all()
    with pytest.raises((outcrop.Damaged, outcrop.Missing)):
        outcrop.read("run", tmp_path / "checkpoints")["u"]


CASES = [name.removesuffix("_on_a_tape").replace("_", " ") for name in globals() if name.endswith("_on_a_tape")]


@pytest.mark.parametrize("case", CASES)
def test_on_a_tape(case, tape, tmp_path):
    globals()[f"{case.replace(' ', '_')}_on_a_tape"](tape, tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_in_a_store(case, session, tmp_path):
    globals()[f"{case.replace(' ', '_')}_in_a_store"](session, tmp_path)


def test_the_table_names_tests_that_exist():
    page = (ROOT / "docs" / "testing.md").read_text()
    lines = page.split("## Hostile calls\n")[1].split("\n## ")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert head == ["case", "on a tape", "in a store", "Rust", "Python", "C", "C++", "Fortran", "VELOC"]
    assert [row[0] for row in rows] == CASES
    places = {"Rust": ["crates/outcrop/tests"], "VELOC": ["bindings/veloc/tests"]}
    for row in rows:
        assert row[4] == "yes", "both functions above"
        for language, cell in zip(head[3:], row[3:], strict=True):
            tests = re.findall(r"`([^`]+)`", cell)
            assert tests or cell == "yes" or cell.startswith("no: "), f"{row[0]}, {language}: neither a test nor a reason"
            sources = [path for place in places.get(language, ["bindings/c/tests"]) for path in (ROOT / place).rglob("*.rs")]
            for test in tests:
                *module, function = test.split("::")
                found = [path for path in sources if f"fn {function}()" in path.read_text()]
                assert any(not module or path.stem == module[-1] for path in found), f"{row[0]}, {language}: there is no {test}"
