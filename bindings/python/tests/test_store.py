"""Stores: what is saved survives, and comes back into the program's own arrays."""

import multiprocessing
import threading

import numpy as np
import outcrop
import pytest


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture
def store(directory):
    with outcrop.Store("run", dir=directory, host="8 MiB", pin=False) as store:
        yield store


def test_the_newest_version_comes_back_in_another_run(directory):
    field = np.random.default_rng(1).random((100, 200))
    random = np.random.default_rng(2)
    with outcrop.Store("run", dir=directory) as store:
        assert store.latest() is None and store.restore() is None
        for step in (3, 4):
            store.save(step, field=field * step, rng=random.bit_generator.state, step=step)
            store.wait(step)
    with outcrop.Store("run", dir=directory) as store:
        assert store.versions == [3, 4]
        back = np.empty_like(field)
        version = store.latest().into(field=back)
        np.testing.assert_array_equal(back, field * 4)
        assert version.number == version["step"] == 4
        other = np.random.default_rng(5)
        other.bit_generator.state = version["rng"]
        assert other.random() == random.random()
        older = store.version(3)
        assert older.names == ["field", "rng", "step"] and len(older) == 3 and "field" in older
        assert dict(older)["step"] == 3
        np.testing.assert_array_equal(older["field"], field * 3)


def test_a_version_on_its_way_can_be_read_again(store):
    field = np.random.default_rng(1).random(500_000)
    store.save(1, field=field, step=1)
    version = store.latest()
    for _ in range(3):
        back = np.empty_like(field)
        version.into(field=back)
        np.testing.assert_array_equal(back, field)
        assert version["step"] == 1
        assert store.restore(field=back).number == 1


STRUCTURE = np.dtype([("position", "<f4", (3,)), ("step", "i8"), ("inner", [("a", "u1"), ("b", ">i2")])])


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", "c16", ">f8", "M8[s]", "S5", STRUCTURE], ids=str)
def test_arrays_of_any_dtype_and_order_come_back(store, dtype):
    values = np.zeros((4, 3), dtype)
    values.flat[5] = np.ones((), dtype) if np.dtype(dtype).kind != "V" else ((1, 2, 3), 4, (5, 6))
    store.save(1, plain=values, fortran=np.asfortranarray(values), strided=values[::2, ::2], empty=values[:0])
    store.wait(1)
    version = store.version(1)
    for name, expected in (("plain", values), ("fortran", values), ("strided", values[::2, ::2]), ("empty", values[:0])):
        np.testing.assert_array_equal(version[name], expected)
        assert version[name].dtype == expected.dtype
    assert version["fortran"].flags.f_contiguous
    # Targets may lie in memory in any way.
    for make in (np.empty, lambda shape, dtype: np.empty(shape, dtype, "F"), lambda *like: np.empty((8, 3), dtype)[::2]):
        for name in ("plain", "fortran"):
            for restore in (version.into, store.restore):
                target = make((4, 3), dtype)
                target[...] = np.zeros((), dtype)
                restore(**{name: target})
                np.testing.assert_array_equal(target, values)


def test_values_that_are_no_arrays_are_pickled_and_only_unpickled_when_read(store):
    store.save(1, text="abc", data=b"x", many=[1, {"a": (2, None)}], trap=Trap(), number=np.float64(2.5))
    version = store.latest()
    assert (version["text"], version["data"], version["many"]) == ("abc", b"x", [1, {"a": (2, None)}])
    assert version["number"] == 2.5 and "trap" in version.names
    with pytest.raises(ZeroDivisionError, match="unpickled"):
        version["trap"]


class Trap:
    """Goes off when it is unpickled."""

    def __reduce__(self):
        return (spring, ())


def spring():
    raise ZeroDivisionError("unpickled")


def test_only_what_has_changed_is_written(store):
    field = np.zeros(1 << 20, "u1")
    store.save(1, field=field)
    store.wait(1)
    before = store.stats()["layers"][1]["written_bytes"]
    field[5000] = 1
    store.save(2, field=field)
    store.mark_dirty("field", 0, 10)
    store.wait(2, layer=1)
    assert store.stats()["layers"][1]["written_bytes"] - before < 200_000
    back = np.empty_like(field)
    store.latest().into(field=back)
    np.testing.assert_array_equal(back, field)
    # To look at something does not make the next version larger.
    assert store.version(1)["field"].sum() == 0
    before = store.stats()["layers"][1]["written_bytes"]
    field[9000] = 1
    store.save(3, field=field)
    store.wait(3)
    assert store.stats()["layers"][1]["written_bytes"] - before < 200_000


def test_old_versions_go_and_new_ones_can_be_taken_back(directory):
    with outcrop.Store("run", dir=directory, keep_last=2, host="8 MiB") as store:
        for version in range(1, 6):
            store.save(version, step=version)
            store.wait(version)
        store.flush()
        assert store.versions[-2:] == [4, 5] and 1 not in store.versions
        with pytest.raises(outcrop.Exists, match="rewind first"):
            store.save(5, step=5)
        store.rewind(4)
        assert store.latest()["step"] == 4
        store.save(5, step=50)
        assert store.latest()["step"] == 50
        store.rewind()
        assert store.latest() is None


def test_it_is_time_to_save_by_the_interval(directory):
    with outcrop.Store("run", dir=directory, interval=0.0, host="8 MiB") as store:
        assert store.due()
    with outcrop.Store("run", dir=directory, interval=3600, host="8 MiB") as store:
        store.save(1, step=1)
        assert not store.due()
    with outcrop.Store("run", dir=directory, host="8 MiB") as store:
        assert not store.due()


@pytest.mark.parametrize(
    ("call", "error", "hint"),
    [
        (lambda store: store.version(9), outcrop.Missing, "^session run has no version 9"),
        (lambda store: store.version(1)["u"], KeyError, "^version 1 of run has no u; it has field, step"),
        (lambda store: store.version(1).into(u=np.zeros(3)), outcrop.Missing, "has no u"),
        (lambda store: store.version(1).into(field=np.zeros(4)), outcrop.Usage, r"shape \(2, 3\)"),
        (lambda store: store.version(1).into(field=np.zeros((3, 2))), outcrop.Usage, r"shape \(2, 3\)"),
        (lambda store: store.version(1).into(field=np.zeros((2, 3), "f4")), outcrop.Usage, "float64"),
        (lambda store: store.version(1).into(field=7), outcrop.Usage, "into a int"),
        (lambda store: store.version(1).into(field=np.broadcast_to(0.0, (2, 3))), outcrop.Usage, "read-only"),
        (lambda store: store.version(1).into(step=np.zeros(3)), outcrop.Usage, "is no array"),
        (lambda store: store.restore(field=np.zeros(4)), outcrop.Usage, "48 bytes and not 32"),
        (lambda store: store.wait(7), outcrop.Missing, "no version 7"),
        (lambda store: store.wait(1, layer=2), outcrop.Usage, "no layer 2"),
        (lambda store: store.save(-1, step=1), outcrop.Usage, "from 0 upwards"),
        (lambda store: store.save(2, **{"a/b": np.zeros(3)}), outcrop.Usage, "/"),
        (lambda store: store.save(2, **{"outcrop.python": 1}), outcrop.Usage, "choose another name"),
        (lambda store: store.save(2, trap=lambda: 0), Exception, "pickle"),
    ],
)
def test_calls_that_make_no_sense_are_refused_with_a_sentence(store, call, error, hint):
    store.save(1, field=np.ones((2, 3)), step=1)
    with pytest.raises(error, match=hint):
        call(store)
    assert store.versions == [1]


def test_two_values_do_not_go_into_the_same_memory(store):
    store.save(1, u=np.ones(4), v=np.ones(4))
    both = np.zeros(6)
    for restore in (store.restore, store.version(1).into):
        with pytest.raises(outcrop.Usage, match="the same memory"):
            restore(u=both[:4], v=both[2:])
    store.version(1).into(u=both[:4])
    assert both.sum() == 4


def test_settings_that_make_no_sense_are_refused_with_a_sentence(tmp_path):
    for settings, hint in (
        ({"dir": tmp_path, "keep_lats": 3}, "did you mean keep_last?"),
        ({"dir": tmp_path, "compression": "rar"}, "none, lz4, zstd"),
        ({}, "director"),
    ):
        with pytest.raises(outcrop.Usage, match=hint):
            outcrop.Store("run", **settings)


def test_a_store_belongs_to_one_process_at_a_time(directory, store):
    with pytest.raises(outcrop.Busy, match="in use"):
        outcrop.Store("run", dir=directory)


def test_a_closed_store_refuses(directory):
    store = outcrop.Store("run", dir=directory, host="8 MiB")
    store.save(1, step=1)
    version = store.version(1)
    store.close()
    assert store.closed and "closed" in repr(store)
    calls = (store.close, store.latest, store.flush, store.due, lambda: store.save(2, step=2), lambda: store.wait(1))
    for call in (*calls, lambda: version["step"]):
        with pytest.raises(outcrop.Usage, match="closed"):
            call()
    with store:
        pass


def test_a_damaged_version_is_passed_over(directory):
    field = np.arange(100_000.0)
    with outcrop.Store("run", dir=directory, incremental=False) as store:
        store.save(1, field=field)
        store.wait(1)
        first = {path for path in directory.rglob("*") if path.is_file()}
        store.save(2, field=field + 1)
    for path in directory.rglob("*"):
        if path.is_file() and path not in first and path.stat().st_size > 100_000:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
    with outcrop.Store("run", dir=directory) as store:
        back = np.empty_like(field)
        with pytest.raises(outcrop.Damaged) as caught:
            store.latest().into(field=back)
        assert isinstance(caught.value, OSError)
        assert store.restore(field=back).number == 1
        np.testing.assert_array_equal(back, field)


def test_a_directory_can_be_read_while_its_program_goes_on(directory, store):
    assert outcrop.versions("run", directory / "nowhere") == outcrop.versions("other", directory) == []
    for version in (3, 5):
        store.save(version, field=np.full((2, 3), version), step=version)
        store.wait(version)
    assert outcrop.versions("run", directory) == [3, 5]
    newest, older = outcrop.read("run", directory), outcrop.read("run", str(directory), 3)
    assert newest.number == newest["step"] == 5 and older.names == ["field", "step"]
    field = np.zeros((2, 3), int)
    assert older.into(field=field) is older and (field == 3).all()
    for arguments, hint in ((("run", directory, 4), "4"), (("other", directory), "other")):
        with pytest.raises(outcrop.Missing, match=hint):
            outcrop.read(*arguments)
    with pytest.raises(outcrop.Usage, match="no rank 1"):
        outcrop.read("run", directory, rank=1)
    with pytest.raises(outcrop.Usage, match="float64"):
        older.into(field=np.zeros((2, 3)))


def test_what_another_language_saved_is_plain_arrays(store):
    store._save(1, [("u", np.arange(4, dtype="f4")), ("z", np.array([1 + 2j])), ("ok", np.array([True, False]))])
    version = store.latest()
    assert version.names == ["u", "z", "ok"]
    assert version["u"].tolist() == [0, 1, 2, 3] and version["u"].dtype == np.float32
    assert version["z"].tolist() == [1 + 2j] and version["ok"].tolist() == [True, False]


def test_repr_says_what_there_is(store):
    assert repr(store) == "<outcrop.Store 'run', 0 versions>"
    store.save(7, u=np.zeros(3), step=7)
    assert repr(store) == "<outcrop.Store 'run', 1 versions, newest 7>"
    assert repr(store.latest()) == "<outcrop.Version 7 of 'run': u, step>"


def test_threads_share_a_store(store):
    """One thread waits for versions while another saves them."""
    failures = []
    saved = threading.Semaphore(0)

    def wait():
        try:
            for version in range(1, 30):
                saved.acquire()
                store.wait(version)
        except BaseException as error:
            failures.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    for version in range(1, 30):
        store.save(version, u=np.full(10_000, version))
        saved.release()
    waiter.join()
    assert not failures and store.latest()["u"][0] == 29


def rank(number, directory, count):
    """One process of a run."""
    ranks = {"dir": directory / "ranks", "rank": number, "count": count}
    with outcrop.Store("run", dir=directory / "checkpoints", ranks=ranks, host="8 MiB", pin=False) as store:
        latest = store.latest()
        start = latest.number if latest else 0
        field = np.zeros(1000)
        if latest:
            latest.into(field=field)
            assert (field == start * 10 + number).all() and latest["who"] == number
        for version in range(start + 1, start + 3):
            field[:] = version * 10 + number
            store.save(version, field=field, who=number)
        store.wait(start + 2)


def test_ranks_save_and_restore_together(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    for _ in range(2):
        processes = [spawn.Process(target=rank, args=(number, tmp_path, 2)) for number in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(100)
        assert [process.exitcode for process in processes] == [0, 0]
