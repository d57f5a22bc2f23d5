"""Calls that wait: what wakes them, what they wait for, and that Ctrl-C ends each of them."""

import threading

import numpy as np
import outcrop
import pytest
from conftest import PATIENCE

LARGE = np.ones(900 * 1024, "u1")


def test_closing_a_tape_wakes_who_waits_for_other_threads():
    tape = outcrop.Tape(host="1 MiB", pin=False)
    tape.save(1, LARGE)
    used, go, outcomes = threading.Event(), threading.Event(), []

    def idle():
        assert 1 in tape
        used.set()
        go.wait()

    def wait():
        try:
            tape.save(2, LARGE)
        except outcrop.Usage as error:
            outcomes.append(str(error))

    other, waiter = threading.Thread(target=idle), threading.Thread(target=wait)
    other.start()
    used.wait()
    waiter.start()
    waiter.join(0.5)
    assert waiter.is_alive(), "it waits"
    tape.close()
    waiter.join(PATIENCE)
    assert outcomes == ["this tape is closed; open it again"]
    go.set()
    other.join()


def test_closing_a_tape_wakes_who_waits_for_what_the_program_holds():
    tape = outcrop.Tape(host="1 MiB", pin=False, patience_seconds=10 * PATIENCE)
    tape.save(1, LARGE)
    held, outcomes = tape.take(1), []

    def wait():
        try:
            tape.save(2, LARGE)
        except outcrop.Usage as error:
            outcomes.append(str(error))

    waiter = threading.Thread(target=wait)
    waiter.start()
    waiter.join(0.5)
    assert waiter.is_alive(), "it waits"
    tape.close()
    waiter.join(PATIENCE)
    assert outcomes == ["this tape is closed; open it again"] and held.sum() == LARGE.sum()


@pytest.mark.parametrize("look", [str, len, list, outcrop.Tape.stats, outcrop.Tape.keys])
def test_looking_is_not_using(look):
    with outcrop.Tape(host="1 MiB", pin=False) as tape:
        tape.save(1, LARGE)
        looked, go = threading.Event(), threading.Event()

        def watch():
            look(tape)
            looked.set()
            go.wait()

        watcher = threading.Thread(target=watch)
        watcher.start()
        looked.wait()
        timer = threading.Timer(PATIENCE, tape.close)
        timer.start()
        with pytest.raises(outcrop.Full):
            tape.save(2, LARGE)
        timer.cancel()
        go.set()
        watcher.join()


def test_a_program_with_one_thread_does_not_wait_for_what_it_holds(run):
    program = f"""
import numpy as np, outcrop
tape = outcrop.Tape(host="1 MiB", pin=False, patience_seconds={10 * PATIENCE})
tape.save(1, np.ones(900 * 1024, "u1"))
held = tape.get(1)
for call in (lambda: tape.save(2, held), lambda: tape.lend(2, 900 * 1024, "u1")):
    try:
        call()
    except outcrop.Held as error:
        print("held", tape.keys())
del held
tape.take(1)
tape.save(2, np.ones(900 * 1024, "u1"))
print(tape.keys())
"""
    assert run(program) == "held [1]\nheld [1]\n[2]\n"


def test_who_is_held_up_goes_on_when_another_thread_gives_something_back():
    with outcrop.Tape(host="1 MiB", pin=False, patience_seconds=10 * PATIENCE) as tape:
        tape.save(1, LARGE)
        held = [tape.take(1)]
        threading.Timer(0.5, held.clear).start()
        tape.save(2, LARGE)
        assert tape.keys() == [2]


# Each waits for something that never happens, or not for long.
WAITS = {
    "held": """
tape = outcrop.Tape(host="1 MiB", pin=False, patience_seconds=100000)
tape.save(1, large); held = tape.take(1)
threading.Thread(target=time.sleep, args=(100000,), daemon=True).start()
wait = lambda: tape.save(2, large)
again = lambda: (tape.keys(), tape.save(2, large[:1000]), tape.keys())[::2] == ([], [2])
""",
    "lend": """
tape = outcrop.Tape(host="1 MiB", pin=False, patience_seconds=100000)
tape.save(1, large); held = tape.take(1)
threading.Thread(target=time.sleep, args=(100000,), daemon=True).start()
wait = lambda: tape.lend(2, large.shape, "u1")
again = lambda: (tape.keys(), tape.save(2, large[:1000]), tape.keys())[::2] == ([], [2])
""",
    "rank that does not come": """
ranks = {"dir": "ranks", "rank": 0, "count": 2}
wait = lambda: outcrop.Store(dir="checkpoints", ranks=ranks, host="8 MiB", pin=False).session("run")
again = lambda: True
""",
    **{
        name: f"""
import subprocess, sys
OPEN = 'outcrop.Store(dir="checkpoints", ranks={{"dir": "ranks", "rank": RANK, "count": 2}}, host="8 MiB", pin=False).session("run")'
other = "import sys, outcrop; session = " + OPEN.replace("RANK", "1") + "; sys.stdin.read()"
companion = subprocess.Popen([sys.executable, "-c", other], stdin=subprocess.PIPE)
session = eval(OPEN.replace("RANK", "0"))
session.save(1, u=large)
session.save(2, u=large)
wait = lambda: {call}
def again():
    companion.kill(); companion.wait()
    try:
        session.close()
    except outcrop.OutcropError as error:
        return "version 1" in str(error)
"""
        for name, call in {
            "version of another rank": "session.wait(1)",
            "flush": "session.flush()",
            "close": "session.close()",
            "versions in flight": "session.save(3, u=large)",
            "collective call": "session.latest()",
        }.items()
    },
}


@pytest.mark.parametrize("name", WAITS)
def test_every_wait_ends_at_an_interrupt(run, name):
    program = f"""
import signal, threading, time, numpy as np, outcrop
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
large = np.ones(900 * 1024, "u1")
{WAITS[name]}
def interrupt():
    time.sleep(1); signal.raise_signal(signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    wait()
except KeyboardInterrupt:
    print("interrupted", again())
"""
    assert run(program) == "interrupted True\n"


def test_what_a_take_finds_as_it_is_interrupted_is_kept(run):
    program = """
import signal, threading, time, numpy as np, outcrop
large = np.arange(900 * 1024 // 8)
def handle(number, frame):
    held.clear(); time.sleep(1)  # meanwhile the snapshot comes
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, handle)
tape = outcrop.Tape(host="1 MiB", dir="scratch", pin=False, patience_seconds=100000)
tape.save(1, u=large, v=large[:3]); tape.save(2, large)
held = [tape.take(2)]
threading.Thread(target=time.sleep, args=(100000,), daemon=True).start()
def interrupt():
    time.sleep(1); signal.raise_signal(signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    tape.take(1)
except KeyboardInterrupt:
    found = tape.take(1)
    print("interrupted", (found["u"] == large).all(), found["v"])
"""
    assert run(program) == "interrupted True [0 1 2]\n"


def test_several_threads_may_close_at_the_same_time(tmp_path):
    for number in range(20):
        store = outcrop.Store(dir=tmp_path / str(number), host="4 MiB", pin=False)
        session, failures = store.session("run"), []
        session.save(1, u=LARGE)

        def close(what):
            try:
                what.close()
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=close, args=(what,)) for what in (store, session, session, store)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures and store.closed and session.closed


def test_a_signal_handler_cannot_call_what_waits(run):
    program = """
import signal, subprocess, sys, threading, time, numpy as np, outcrop
OPEN = 'outcrop.Store(dir="checkpoints", ranks={"dir": "ranks", "rank": RANK, "count": 2}, host="8 MiB", pin=False).session("run")'
other = "import sys, outcrop; session = " + OPEN.replace("RANK", "1") + "; sys.stdin.read()"
companion = subprocess.Popen([sys.executable, "-c", other], stdin=subprocess.PIPE)
session = eval(OPEN.replace("RANK", "0"))
session.save(1, u=np.zeros(1000))
def handle(*_):
    try:
        session.save(2, u=np.zeros(1000))
    except outcrop.Busy as error:
        print("signal handler" in str(error))
    companion.kill()
signal.signal(signal.SIGALRM, handle)
signal.alarm(1)
try:
    session.flush()
except outcrop.Storage:
    print("told")
session.close()
"""
    assert run(program) == "True\ntold\n"
