"""Tapes: what is saved comes back, in place, and what cannot be is refused with a sentence that helps."""

import array
import gc
import json
import threading
import weakref

import numpy as np
import outcrop
import pytest

MIB = 1 << 20

DTYPES = ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", ">f8", "M8[ns]", "m8[D]", "S5", "U3", "V7"]
STRUCTURE = np.dtype([("position", "<f4", (3,)), ("step", "i8"), ("inner", [("a", "u1"), ("b", ">i2")])])


@pytest.fixture
def tape(tmp_path):
    with outcrop.Tape(host="8 MiB", dir=tmp_path / "scratch", patience_seconds=0.2, pin=False) as tape:
        yield tape


def filled(shape, dtype, seed=1):
    """An array of any dtype, with random bytes that are a value of it."""
    dtype = np.dtype(dtype)
    random = np.random.default_rng(seed)
    if dtype.kind in "?b":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.kind == "U":
        return random.integers(0, 1000, shape).astype(dtype)
    return random.integers(0, 100, (*shape, dtype.itemsize), dtype="u1").view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", [*DTYPES, STRUCTURE], ids=str)
def test_a_snapshot_has_the_dtype_and_shape_that_was_saved(tape, dtype):
    values = filled((3, 4, 5), dtype)
    tape.save(1, values)
    back = tape.take(1)
    assert (back.dtype, back.shape) == (values.dtype, values.shape)
    assert back.tobytes() == values.tobytes()
    assert 1 not in tape


@pytest.mark.parametrize(
    "values",
    [
        np.float32(3.5) * np.ones(()),
        np.zeros((0, 3)),
        np.arange(24.0).reshape(2, 3, 4).T,
        np.arange(24.0).reshape(4, 6)[::2, 1::3],
        np.arange(10.0)[::-1],
        np.broadcast_to(np.arange(3.0), (4, 3)),
    ],
    ids=["one number", "empty", "Fortran order", "every second", "backwards", "broadcast"],
)
def test_whatever_lies_in_memory_however_comes_back(tape, values):
    tape.save(1, values)
    back = tape.get(1)
    assert back.shape == values.shape
    np.testing.assert_array_equal(back, values)
    # What lies in one piece is not put in another order.
    assert not values.flags.f_contiguous or back.flags.f_contiguous


def test_forward_and_back_through_a_directory(tape):
    state = np.zeros((512, 256))
    for step in range(40):
        state += step
        tape.save(step, state)
    assert tape.keys() == list(range(40)) and len(tape) == 40 and 39 in tape
    for step in reversed(range(40)):
        np.testing.assert_array_equal(tape.take(step), state)
        state -= step
    stats = tape.stats()
    assert stats["saves"] == stats["reads"] == 40
    assert stats["layers"][1]["written_bytes"] > 0, "it does not fit into host memory"


def test_a_read_snapshot_is_the_slot_itself_and_cannot_be_written_to(tape):
    tape.save(1, np.arange(10.0))
    first, second = tape.get(1), tape.get(1)
    assert np.shares_memory(first, second)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1
    with pytest.raises(ValueError):
        first.flags.writeable = True
    with pytest.raises(ValueError):
        first[2:].flags.writeable = True


def test_a_slot_is_free_when_its_last_view_is_gone():
    with outcrop.Tape(host="4 MiB", patience_seconds=0.1, pin=False) as tape:
        state = np.ones(3 * MIB, "u1")
        tape.save(1, state)
        part = tape.take(1)[100:200]
        with pytest.raises(outcrop.Held, match="drop what was taken"):
            tape.save(2, state)
        assert part.sum() == 100
        del part
        gc.collect()
        tape.save(2, state)


def test_several_arrays_in_one_snapshot(tape):
    u, v = np.arange(6.0).reshape(2, 3), np.arange(4, dtype="i2")
    tape.save(1, u=u, v=v)
    back = tape.take(1)
    assert list(back) == ["u", "v"]
    np.testing.assert_array_equal(back["u"], u)
    np.testing.assert_array_equal(back["v"], v)
    assert back["v"].dtype == v.dtype


def test_a_part_of_a_global_array_has_a_box(tape):
    rows, tile = np.arange(12.0).reshape(3, 4), np.asfortranarray(np.arange(6).reshape(2, 3))
    tape.save(1, outcrop.boxed(rows, (9, 4), (6, 0)))
    tape.save(2, rows=outcrop.boxed(rows, (9, 4), (6, 0)), tile=outcrop.boxed(tile, (4, 8), (1, 2)), whole=tile)
    # Two that have no memory of their own are two.
    none = [outcrop.boxed(rows[:0], (9, 4), (offset, 0)) for offset in (3, 6)]
    tape.save(3, a=none[0], b=none[1])
    back = tape.get(1)
    np.testing.assert_array_equal(back, rows)
    assert outcrop.box_of(back) == outcrop.box_of(back[1:].T) == outcrop.Box((9, 4), (6, 0))
    back = tape.take(2)
    assert [outcrop.box_of(array) for array in back.values()] == [((9, 4), (6, 0)), ((4, 8), (1, 2)), None]
    assert back["tile"].flags.f_contiguous
    assert [outcrop.box_of(array).offset[0] for array in tape.take(3).values()] == [3, 6]
    with tape.lend(4, (2, 3), order="F", box=outcrop.Box((4, 8), (1, 2))) as u:
        assert outcrop.box_of(u) == ((4, 8), (1, 2))
        u[:] = tile
    assert outcrop.box_of(tape.take(4)) == ((4, 8), (1, 2))
    with tape.lend(5, u=((2, 3), "f4", ((4, 3), (2, 0))), v=(3, "f4")) as arrays:
        arrays["u"][:], arrays["v"][:] = 1, 2
    back = tape.take(5)
    assert outcrop.box_of(back["u"]) == ((4, 3), (2, 0)) and outcrop.box_of(back["v"]) is None
    assert outcrop.box_of(rows) is None and outcrop.box_of(7) is None
    for call in (
        lambda: tape.save(6, outcrop.boxed(rows, (9, 4), (7, 0))),
        lambda: tape.lend(6, (3, 4), box=outcrop.Box((9, 4), (7, 0))),
        lambda: tape.lend(6, u=((3, 4), "f8", ((9, 4), (7, 0)))),
    ):
        with pytest.raises(outcrop.Usage, match="not inside its global array"):
            call()
    assert 6 not in tape


def test_what_is_no_numpy_array_is_seen_as_one(tape):
    class Tensor:
        """Knows DLPack and nothing else."""

        def __init__(self, values):
            self.values = values

        def __dlpack__(self, **options):
            return self.values.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.values.__dlpack_device__()

    tape.save(1, b"abc")
    tape.save(2, array.array("d", [1, 2]))
    tape.save(3, memoryview(np.arange(6, dtype="i4").reshape(2, 3)))
    tape.save(4, Tensor(np.arange(3.0)))
    tape.save(5, [1.5, 2.5])
    assert tape.take(1).tobytes() == b"abc"
    assert tape.take(2).tolist() == [1, 2]
    assert tape.take(3).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tape.take(4).tolist() == [0, 1, 2]
    assert tape.take(5).tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        (np.array([{}, None]), "Python objects"),
        (object(), "Python objects"),
        (np.ma.masked_array([1, 2], [True, False]), "its mask"),
        (np.zeros(3, [("nothing", "S0")])["nothing"], "no length"),
    ],
)
def test_what_holds_no_numbers_is_refused(tape, values, hint):
    # A masked array in one piece would pass for a plain one.
    with pytest.raises(outcrop.Usage, match=hint):
        tape.save(1, values)
    assert len(tape) == 0


def test_a_lent_slot_becomes_the_snapshot(tape):
    with tape.lend(1, (4, 5), "f4") as u:
        assert (u.shape, u.dtype) == ((4, 5), np.float32)
        u[:] = np.arange(20).reshape(4, 5)
        address = u.ctypes.data
    back = tape.take(1)
    assert back.ctypes.data == address, "no copy"
    np.testing.assert_array_equal(back, np.arange(20).reshape(4, 5))
    # It can be read on, by whatever name, but not written to.
    assert u.sum() == 190
    with pytest.raises(ValueError):
        u[0] = 1
    with pytest.raises(ValueError):
        u.flags.writeable = True


def test_a_lent_slot_may_have_several_arrays_and_any_order(tape):
    with tape.lend(1, u=((2, 3), "f8"), mask=(7, "?")) as arrays:
        arrays["u"][:] = 2
        arrays["mask"][:] = True
    back = tape.take(1)
    assert back["u"].sum() == 12 and back["mask"].all() and back["mask"].shape == (7,)
    with tape.lend(3, 2, ("f4", (3,))) as u:
        assert (u.shape, u.dtype) == ((2, 3), np.float32), "as numpy.empty does"
    with tape.lend(2, (2, 3), order="F") as u:
        assert u.flags.f_contiguous and u.dtype == np.float64
        u[:] = [[1, 2, 3], [4, 5, 6]]
    assert tape.take(2).tolist() == [[1, 2, 3], [4, 5, 6]]


def test_an_exception_leaves_no_snapshot_and_the_key_free(tape):
    for attempt in range(3):
        try:
            with tape.lend(1, 10) as u:
                u[:] = attempt
                if attempt < 2:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            assert 1 not in tape
    assert tape.take(1)[0] == 2


def test_the_memory_of_a_view_that_outlives_the_block_is_given_to_nobody_else(tape):
    with tape.lend(1, 10) as u:
        u[:] = 0
        view = u[3:5]
    view[:] = 7
    tape.save(2, np.zeros(10))
    view[:] = 8
    assert tape.take(1).sum() == tape.take(2).sum() == 0
    with tape.lend(1, 10) as u:
        alias = u
        u[3:5] = 1
        del view
    assert alias.sum() == tape.take(1).sum() and not alias.flags.writeable


def test_a_lent_slot_ends_once(tape):
    lent = tape.lend(1, 3)
    lent.__enter__()[:] = 5
    lent.seal()
    for end in (lent.seal, lent.abandon):
        with pytest.raises(outcrop.Usage, match="sealed or abandoned before"):
            end()
    assert tape.take(1).tolist() == [5, 5, 5]
    tape.lend(2, 3)
    tape.save(2, np.zeros(3))  # What was never sealed has left the key free.


@pytest.mark.parametrize(
    ("call", "error", "hint"),
    [
        (lambda tape: tape.take(9), outcrop.Missing, "^there is no snapshot 9"),
        (lambda tape: tape.discard(9), KeyError, "^there is no snapshot 9"),
        (lambda tape: tape.save(1, np.zeros(3)), outcrop.Exists, "exists already"),
        (lambda tape: tape.lend(1, 3), ValueError, "exists already"),
        (lambda tape: tape.save(2, np.zeros(9 * MIB, "u1")), outcrop.TooLarge, "larger than"),
        (lambda tape: tape.lend(2, (1 << 40, 1 << 40)), outcrop.TooLarge, "larger than memory"),
        (lambda tape: tape.save(-1, np.zeros(3)), outcrop.Usage, "from 0 upwards"),
        (lambda tape: tape.take(1 << 64), outcrop.Usage, "from 0 upwards"),
        (lambda tape: tape.save("one", np.zeros(3)), TypeError, "whole number"),
        (lambda tape: tape.save(2), outcrop.Usage, "give one array"),
        (lambda tape: tape.save(2, np.zeros(3), u=np.zeros(3)), outcrop.Usage, "give one array"),
        (lambda tape: tape.lend(2), outcrop.Usage, "shape"),
        (lambda tape: tape.lend(2, "ab"), outcrop.Usage, "shape"),
        (lambda tape: tape.lend(2, u=3), outcrop.Usage, "shape"),
        (lambda tape: tape.lend(2, -1), outcrop.Usage, "shape"),
        (lambda tape: tape.lend(2, 3, "O"), outcrop.Usage, "Python objects"),
        (lambda tape: tape.lend(2, 3, "no such dtype"), TypeError, "no dtype"),
        (lambda tape: tape.lend(2, 3, "S"), outcrop.Usage, "no length"),
        (lambda tape: tape.lend(2, 3, order="Z"), outcrop.Usage, "order"),
        (lambda tape: tape.write_trace("/no/such/place"), outcrop.Usage, "keeps no timeline; open it with trace"),
    ],
)
def test_calls_that_make_no_sense_are_refused_with_a_sentence(tape, call, error, hint):
    tape.save(1, np.zeros(3))
    with pytest.raises(error, match=hint):
        call(tape)
    assert tape.keys() == [1], "nothing has happened"


def test_a_full_tape_says_so_at_once():
    with outcrop.Tape(host="4 MiB", patience_seconds=600, pin=False) as tape:
        tape.save(1, np.ones(3 * MIB, "u1"))
        with pytest.raises(outcrop.Full, match="raise a limit or add a layer") as caught:
            tape.save(2, np.ones(3 * MIB, "u1"))
        assert isinstance(caught.value, OSError)


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"hots": "1 GiB"}, "there is no hots; did you mean host?"),
        ({}, 'host = "2 GiB"'),
        ({"host": "much"}, "write a size such as"),
        ({"host": "1 MiB", "order": "sideways"}, '"reverse", "forward", "unknown", or a list of keys'),
        ({"host": "1 MiB", "dir": "/proc/no/such"}, "/proc/no/such"),
        ({"host": "1 MiB", "dir": {"path": "x", "limt": 1}}, "did you mean limit?"),
        ({"host": object()}, "neither text, number"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_a_sentence(settings, hint):
    with pytest.raises(outcrop.OutcropError) as caught:
        outcrop.Tape(**settings)
    assert hint in str(caught.value)


def test_settings_may_be_paths_numbers_and_ranges(tmp_path):
    dirs = [tmp_path / "a", {"path": str(tmp_path / "b"), "limit": np.int64(4 * MIB)}]
    with outcrop.Tape(host=np.int32(2 * MIB), dir=dirs, order=range(3), trace=True) as tape:
        capacities = [layer["capacity_bytes"] for layer in tape.stats()["layers"]]
        assert (len(capacities), capacities[0], capacities[2]) == (3, 2 * MIB, 4 * MIB)
        tape.save(0, np.zeros(3))
        tape.write_trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())


def test_the_environment_overrides_settings(monkeypatch):
    monkeypatch.setenv("OUTCROP_HOST", "3 MiB")
    with outcrop.Tape(host="1 MiB") as tape:
        assert tape.stats()["layers"][0]["capacity_bytes"] == 3 * MIB


def test_a_closed_tape_refuses_and_leaves_no_file(tmp_path):
    tape = outcrop.Tape(host="4 MiB", dir=tmp_path, pin=False)
    for step in range(8):
        tape.save(step, np.full(MIB, step, "u1"))
    kept = tape.take(3)
    lent = tape.lend(100, 10)
    filling = lent.__enter__()
    tape.close()
    assert tape.closed and list(tmp_path.iterdir()) == []
    assert (kept == 3).all(), "what was handed over stays"
    filling[:] = 1
    with pytest.raises(outcrop.Usage, match="closed"):
        lent.seal()
    for call in (lambda: tape.take(1), lambda: tape.save(9, np.zeros(1)), tape.keys, tape.stats):
        with pytest.raises(outcrop.Usage, match="closed"):
            call()
    assert "closed" in repr(tape)
    other = outcrop.Tape(host="4 MiB", pin=False)
    with pytest.raises(ZeroDivisionError):
        with other.lend(1, 10):
            other.close()
            raise ZeroDivisionError
    with tape:
        tape.close()  # To close what is closed is no error.


def test_a_tape_that_is_not_closed_ends_with_its_last_reference(tmp_path):
    tape = outcrop.Tape(host="4 MiB", dir=tmp_path, pin=False)
    gone = weakref.ref(tape)
    tape.save(1, np.zeros(1))
    del tape
    gc.collect()
    assert gone() is None and list(tmp_path.iterdir()) == []


def test_repr_says_what_there_is(tape):
    tape.save(1, np.zeros(1000))
    assert "1 snapshots" in repr(tape) and "8 MiB" in repr(tape) and "scratch" in repr(tape)


def test_threads_share_a_tape(tape):
    failures = []

    def work(first):
        try:
            for step in range(first, first + 400, 4):
                tape.save(step, np.full(2000, step))
                if step % 3:
                    assert (tape.get(step) == step).all()
                with tape.lend(step + 1000, 100) as u:
                    u[:] = step
            for step in reversed(range(first, first + 400, 4)):
                assert (tape.take(step) == step).all() and (tape.take(step + 1000) == step).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(tape) == 0


def test_a_full_tape_waits_for_what_another_thread_takes():
    count = 50
    with outcrop.Tape(host="1 MiB", order="forward", patience_seconds=60, pin=False) as tape:
        began, failures = threading.Event(), []

        def consume():
            try:
                assert 0 not in tape
                began.set()
                for step in range(count):
                    while step not in tape:
                        pass
                    assert tape.take(step)[0] == step
            except BaseException as error:
                failures.append(error)

        consumer = threading.Thread(target=consume)
        consumer.start()
        began.wait()
        for step in range(count):
            tape.save(step, np.full(300 * 1024, step, "u1"))
        consumer.join()
        assert not failures and len(tape) == 0


def test_who_waits_for_a_thread_that_ends_is_told_that_the_tape_is_full():
    with outcrop.Tape(host="1 MiB", patience_seconds=600, pin=False) as tape:
        tape.save(1, np.ones(900 * 1024, "u1"))
        began, go = threading.Event(), threading.Event()

        def idle():
            assert 1 in tape
            began.set()
            go.wait()

        other = threading.Thread(target=idle)
        other.start()
        began.wait()
        threading.Timer(0.3, go.set).start()
        with pytest.raises(outcrop.Full):
            tape.save(2, np.ones(900 * 1024, "u1"))
        other.join()


def test_not_everybody_waits_for_the_others():
    with outcrop.Tape(host="1 MiB", pin=False) as tape:
        both, outcomes = threading.Barrier(2), []

        def produce(key):
            if key == 1:
                tape.save(0, np.ones(900 * 1024, "u1"))
            assert key not in tape
            both.wait()
            try:
                tape.save(key, np.ones(900 * 1024, "u1"))
                outcomes.append("saved")
            except outcrop.Full:
                outcomes.append("full")
                tape.take(0)

        threads = [threading.Thread(target=produce, args=(key,)) for key in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["full", "saved"] and len(tape) == 1


def test_a_slot_that_several_threads_end_is_ended_once(tape):
    for key in range(50):
        lent, outcomes = tape.lend(key, 10), []

        def end(way):
            try:
                way()
                outcomes.append(way.__name__)
            except outcrop.Usage:
                outcomes.append("too late")

        threads = [threading.Thread(target=end, args=(way,)) for way in (lent.seal, lent.abandon, lent.abandon)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 3 and outcomes.count("too late") == 2
        assert (key in tape) == ("seal" in outcomes)


def test_who_waits_for_others_can_be_interrupted(run):
    program = """
import numpy as np, outcrop, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
tape = outcrop.Tape(host="1 MiB", pin=False)
tape.save(0, np.ones(900 * 1024, "u1"))
began, go = threading.Event(), threading.Event()
def idle():
    0 in tape; began.set(); go.wait()
thread = threading.Thread(target=idle); thread.start(); began.wait()
threading.Timer(0.5, lambda: signal.raise_signal(signal.SIGINT)).start()
try:
    tape.save(1, np.ones(900 * 1024, "u1"))
except KeyboardInterrupt:
    print("interrupted")
go.set()
"""
    assert run(program) == "interrupted\n"
