"""Tapes and stores in programs that fork, end, and may not use io_uring."""

import sys

import pytest

FORK = """
import os, sys, numpy as np, outcrop
tape = outcrop.Tape(host="8 MiB", dir="scratch", pin=False)
store = outcrop.Store(dir="checkpoints", host="8 MiB", pin=False)
session = store.session("run")
tape.save(1, np.arange(3.0)); tape.save(2, np.arange(3.0))
session.save(1, step=1)
got, lent = tape.get(1), tape.lend(5, 3)
filling = lent.__enter__()
child = os.fork()
if child == 0:
    calls = [lambda: tape.take(1), lambda: tape.save(3, np.zeros(1)), tape.keys, tape.close, tape.stats, lent.seal,
             lambda: session.save(2, step=2), session.latest, session.close, lambda: session.wait(1), store.due, store.close]
    for call in calls:
        try:
            call()
        except outcrop.Usage as error:
            assert "forked" in str(error) and "open it in the child" in str(error), error
        else:
            raise AssertionError("it should not work here")
    assert got.sum() == 3
    del tape, store, session, got, lent, filling, calls, call
    with outcrop.Tape(host="8 MiB", dir="scratch", pin=False) as own:
        own.save(1, np.ones(5))
        assert own.take(1).sum() == 5
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
filling[:] = 1
lent.seal()
assert tape.take(1).sum() == 3 and tape.take(5).sum() == 3
session.save(2, step=2)
tape.close(); store.close()
print("well")
"""


def test_a_forked_child_can_neither_use_nor_harm_what_is_open(run):
    assert run(FORK) == "well\n"


POOL = """
import multiprocessing, numpy as np, outcrop
tape = outcrop.Tape(host="8 MiB", dir="scratch", pin=False)
tape.save(1, np.arange(3.0))
def work(number):
    try:
        tape.take(1)
    except outcrop.Usage:
        return number
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(work, range(4)))
print(tape.take(1).sum())
"""


def test_a_pool_of_forked_workers_ends(run):
    assert run(POOL) == "[0, 1, 2, 3]\n3.0\n"


EXIT = """
import sys, threading, numpy as np, outcrop
tape = outcrop.Tape(host="8 MiB", dir="scratch", pin=False)
for step in range(20):
    tape.save(step, np.ones(1 << 20, "u1"))
got = tape.get(19)
lent = tape.lend(50, 10); filling = lent.__enter__()
session = outcrop.Store(dir="checkpoints", host="8 MiB", pin=False).session("run")
session.save(1, field=np.ones(1 << 20), step=1)
cycle = [tape, session]; cycle.append(cycle)
"""


@pytest.mark.parametrize("way", ["end", "thread"])
def test_a_program_may_end_with_everything_open(run, tmp_path, way):
    run(EXIT + ("\nthreading.Thread(target=tape.keys).start()\n" if way == "thread" else ""), way)
    assert not (tmp_path / "scratch").exists(), "the tape was closed, and leaves nothing"
    look = "import outcrop; print(outcrop.Store(dir='checkpoints').session('run').latest()['step'])"
    assert run(look) == "1\n", "the store has finished"


def test_everything_is_closed_at_the_end_even_if_something_fails(run):
    program = """
import outcrop
class Loud(outcrop.Tape):
    def close(self):
        super().close()
        print("closed")
        raise ZeroDivisionError
tapes = [Loud(host="1 MiB", pin=False) for _ in range(3)]
"""
    assert run(program) == "closed\n" * 3


NO_IO_URING = """
import ctypes, struct, sys, platform
# A filter that lets everything pass but io_uring_setup, which has the same number everywhere.
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
program = b"".join(struct.pack("HBBI", *line) for line in [
    (LOAD, 0, 0, 0), (EQUAL, 0, 1, 425), (RETURN, 0, 0, 0x00050000 | int(sys.argv[1])), (RETURN, 0, 0, 0x7FFF0000)])
buffer = ctypes.create_string_buffer(program)
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, filter, 0, 0) == 0, "the kernel has no filters"
assert libc.syscall(425, 1, None) == -1 and ctypes.get_errno() == int(sys.argv[1])
import numpy as np, outcrop
with outcrop.Tape(host="4 MiB", dir="scratch", pin=False) as tape:
    for step in range(30):
        tape.save(step, np.full(1 << 20, step, "u1"))
    for step in reversed(range(30)):
        assert (tape.take(step) == step).all()
    assert tape.stats()["layers"][1]["written_bytes"] > 0
with outcrop.Store(dir="checkpoints", host="8 MiB").session("run") as session:
    session.save(1, step=1)
    session.wait(1)
    print(session.latest()["step"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
@pytest.mark.parametrize("refusal", [1, 38], ids=["EPERM", "ENOSYS"])
def test_without_io_uring_everything_works(run, refusal):
    assert run(NO_IO_URING, refusal) == "1\n"


def test_importing_needs_numpy_only(run):
    program = """
import sys
before = set(sys.modules)
import outcrop
named = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(named & {"torch", "h5py", "scipy", "pandas", "jax", "devito"}))
"""
    assert run(program) == "[]\n"
