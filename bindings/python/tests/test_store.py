"""Stores: what is saved survives, and comes back into the program's own arrays."""

import multiprocessing
import pathlib
import pickle
import shutil
import threading

import numpy as np
import outcrop
import pytest
from conftest import PATIENCE


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture
def store(directory):
    with outcrop.Store(dir=directory, host="8 MiB", pin=False) as store:
        yield store


@pytest.fixture
def session(store):
    return store.session("run")


def test_the_newest_version_comes_back_in_another_run(directory):
    field = np.random.default_rng(1).random((100, 200))
    random = np.random.default_rng(2)
    with outcrop.Store(dir=directory).session("run") as session:
        assert session.latest() is None and session.restore() is None
        for step in (3, 4):
            session.save(step, field=field * step, rng=random.bit_generator.state, step=step)
            session.wait(step)
    with outcrop.Store(dir=directory).session("run") as session:
        assert session.versions == [3, 4]
        back = np.empty_like(field)
        version = session.latest().into(field=back)
        np.testing.assert_array_equal(back, field * 4)
        assert version.number == version["step"] == 4
        other = np.random.default_rng(5)
        other.bit_generator.state = version["rng"]
        assert other.random() == random.random()
        older = session.version(3)
        assert older.names == ["field", "rng", "step"] and len(older) == 3 and "field" in older
        assert dict(older)["step"] == 3
        np.testing.assert_array_equal(older["field"], field * 3)


def test_a_version_on_its_way_can_be_read_again(session):
    field = np.random.default_rng(1).random(500_000)
    session.save(1, field=field, step=1)
    version = session.latest()
    for _ in range(3):
        back = np.empty_like(field)
        version.into(field=back)
        np.testing.assert_array_equal(back, field)
        assert version["step"] == 1
        assert session.restore(field=back).number == 1


STRUCTURE = np.dtype([("position", "<f4", (3,)), ("step", "i8"), ("inner", [("a", "u1"), ("b", ">i2")])])


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", "c16", ">f8", "M8[s]", "S5", STRUCTURE], ids=str)
def test_arrays_of_any_dtype_and_order_come_back(session, dtype):
    values = np.zeros((4, 3), dtype)
    values.flat[5] = np.ones((), dtype) if np.dtype(dtype).kind != "V" else ((1, 2, 3), 4, (5, 6))
    session.save(1, plain=values, fortran=np.asfortranarray(values), strided=values[::2, ::2], empty=values[:0])
    session.wait(1)
    version = session.version(1)
    for name, expected in (("plain", values), ("fortran", values), ("strided", values[::2, ::2]), ("empty", values[:0])):
        np.testing.assert_array_equal(version[name], expected)
        assert version[name].dtype == expected.dtype
    assert version["fortran"].flags.f_contiguous
    # Targets may lie in memory in any way.
    for make in (np.empty, lambda shape, dtype: np.empty(shape, dtype, "F"), lambda *like: np.empty((8, 3), dtype)[::2]):
        for name in ("plain", "fortran"):
            for restore in (version.into, session.restore):
                target = make((4, 3), dtype)
                target[...] = np.zeros((), dtype)
                restore(**{name: target})
                np.testing.assert_array_equal(target, values)


def test_values_that_are_no_arrays_are_pickled_and_only_unpickled_when_read(session):
    session.save(1, text="abc", data=b"x", many=[1, {"a": (2, None)}], trap=Trap(), number=np.float64(2.5))
    version = session.latest()
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


def test_only_what_has_changed_is_written(store, session):
    field = np.zeros(1 << 20, "u1")
    session.save(1, field=field)
    session.wait(1)
    before = store.stats()["layers"][1]["written_bytes"]
    field[5000] = 1
    session.save(2, field=field)
    session.mark_dirty("field", 0, 10)
    session.wait(2, layer=1)
    assert store.stats()["layers"][1]["written_bytes"] - before < 200_000
    back = np.empty_like(field)
    session.latest().into(field=back)
    np.testing.assert_array_equal(back, field)
    # To look at something does not make the next version larger.
    assert session.version(1)["field"].sum() == 0
    before = store.stats()["layers"][1]["written_bytes"]
    field[9000] = 1
    session.save(3, field=field)
    session.wait(3)
    assert store.stats()["layers"][1]["written_bytes"] - before < 200_000


def test_old_versions_go_and_new_ones_can_be_taken_back(directory):
    with outcrop.Store(dir=directory, keep_last=2, host="8 MiB").session("run") as session:
        for version in range(1, 6):
            session.save(version, step=version)
            session.wait(version)
        session.flush()
        assert session.versions[-2:] == [4, 5] and 1 not in session.versions
        with pytest.raises(outcrop.Exists, match="rewind first"):
            session.save(5, step=5)
        session.rewind(4)
        assert session.latest()["step"] == 4
        session.save(5, step=50)
        assert session.latest()["step"] == 50
        session.rewind()
        assert session.latest() is None


def test_it_is_time_to_save_by_the_interval(directory):
    with outcrop.Store(dir=directory, interval=0.0, host="8 MiB") as store:
        assert store.due()
    with outcrop.Store(dir=directory, interval=3600, host="8 MiB") as store:
        store.session("run").save(1, step=1)
        assert not store.due() and store.interval_seconds() == [3600]
    with outcrop.Store(dir=directory, host="8 MiB") as store:
        assert not store.due() and store.interval_seconds() == [None]


@pytest.mark.parametrize(
    ("call", "error", "hint"),
    [
        (lambda session: session.version(9), outcrop.Missing, "^session run has no version 9"),
        (lambda session: session.version(1)["u"], KeyError, "^version 1 of run has no u; it has field, step, name"),
        (lambda session: session.version(1).into(u=np.zeros(3)), outcrop.Missing, "has no u"),
        (lambda session: session.version(1).into(field=np.zeros(4)), outcrop.Usage, r"shape \(2, 3\)"),
        (lambda session: session.version(1).into(field=np.zeros((3, 2))), outcrop.Usage, r"shape \(2, 3\)"),
        (lambda session: session.version(1).into(field=np.zeros((2, 3), "f4")), outcrop.Usage, "float64"),
        (lambda session: session.version(1).into(field=7), outcrop.Usage, "into a int"),
        (lambda session: session.version(1).into(field=np.broadcast_to(0.0, (2, 3))), outcrop.Usage, "read-only"),
        (lambda session: session.version(1).into(step=np.zeros(3)), outcrop.Usage, "int64 of shape"),
        (lambda session: session.version(1).into(name=np.zeros(3)), outcrop.Usage, "is no array"),
        (lambda session: session.restore(field=np.zeros(4)), outcrop.Usage, "48 bytes and not 32"),
        (lambda session: session.wait(7), outcrop.Missing, "no version 7"),
        (lambda session: session.wait(1, layer=2), outcrop.Usage, "no layer 2"),
        (lambda session: session.save(-1, step=1), outcrop.Usage, "from 0 upwards"),
        (lambda session: session.save(2, **{"a/b": np.zeros(3)}), outcrop.Usage, "/"),
        (lambda session: session.save(2, **{"outcrop.python": 1}), outcrop.Usage, "choose another name"),
        (lambda session: session.save(2, trap=lambda: 0), Exception, "pickle"),
    ],
)
def test_calls_that_make_no_sense_are_refused_with_a_sentence(session, call, error, hint):
    session.save(1, field=np.ones((2, 3)), step=1, name="a text")
    with pytest.raises(error, match=hint):
        call(session)
    assert session.versions == [1]


def test_a_number_that_is_taken_is_refused_with_one_that_is_not(session):
    session.save(1, u=np.zeros(3))
    session.save(5, u=np.zeros(3))
    for number in (1, 3, 5):
        with pytest.raises(outcrop.Exists, match="save a higher one than 5"):
            session.save(number, u=np.zeros(3))


def test_how_far_a_version_has_got_can_be_asked(session):
    session.save(1, u=np.zeros(1000))
    assert session.has_reached(1) in (False, True)
    session.wait(1)
    assert session.has_reached(1) is True and session.has_reached(1, layer=1) is True
    for arguments, error in (((2,), outcrop.Missing), ((1, 2), outcrop.Usage), ((-1,), outcrop.Usage)):
        with pytest.raises(error):
            session.has_reached(*arguments)
    session.close()
    with pytest.raises(outcrop.Usage, match="closed"):
        session.has_reached(1)


def test_two_values_do_not_go_into_the_same_memory(session):
    session.save(1, u=np.ones(4), v=np.ones(4))
    both = np.zeros(6)
    for restore in (session.restore, session.version(1).into):
        with pytest.raises(outcrop.Usage, match="the same memory"):
            restore(u=both[:4], v=both[2:])
    session.version(1).into(u=both[:4])
    assert both.sum() == 4


def test_settings_that_make_no_sense_are_refused_with_a_sentence(tmp_path):
    for settings, hint in (
        ({"dir": tmp_path, "keep_lats": 3}, "did you mean keep_last?"),
        ({"dir": tmp_path, "compression": "rar"}, '"none", "lz4", "zstd"'),
        ({}, "director"),
    ):
        with pytest.raises(outcrop.Usage, match=hint):
            outcrop.Store(**settings)


def test_a_store_belongs_to_one_process_at_a_time(directory, session):
    with pytest.raises(outcrop.Busy, match="in use"):
        outcrop.Store(dir=directory).session("run")


def test_a_closed_store_and_its_sessions_refuse(directory):
    store = outcrop.Store(dir=directory, host="8 MiB")
    session = store.session("run")
    session.save(1, step=1)
    version = session.version(1)
    store.close()
    assert store.closed and session.closed and "closed" in repr(store) and "closed" in repr(session)
    calls = (session.latest, session.flush, lambda: session.save(2, step=2), lambda: session.wait(1))
    for call in (*calls, lambda: version["step"], store.due, store.stats, lambda: store.session("other")):
        with pytest.raises(outcrop.Usage, match="closed"):
            call()
    # To close what is closed is no error.
    with store, session:
        session.close()
        store.close()


def test_a_store_has_several_sessions_and_waits_for_all(directory):
    with outcrop.Store(dir=directory, host="8 MiB") as store:
        one, other = store.session("one"), store.session("other")
        one.save(1, step=1)
        other.save(2, step=2)
        one.close()
        assert one.closed and not other.closed and other.latest()["step"] == 2
    assert outcrop.versions("one", directory) == [1] and outcrop.versions("other", directory) == [2]


def test_a_damaged_version_is_passed_over(directory):
    field = np.arange(100_000.0)
    with outcrop.Store(dir=directory, incremental=False).session("run") as session:
        session.save(1, field=field)
        session.wait(1)
        first = {path for path in directory.rglob("*") if path.is_file()}
        session.save(2, field=field + 1)
    for path in directory.rglob("*"):
        if path.is_file() and path not in first and path.stat().st_size > 100_000:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
    with outcrop.Store(dir=directory).session("run") as session:
        back = np.empty_like(field)
        with pytest.raises(outcrop.Damaged) as caught:
            session.latest().into(field=back)
        assert isinstance(caught.value, OSError)
        assert session.restore(field=back).number == 1
        np.testing.assert_array_equal(back, field)


def test_a_directory_can_be_read_while_its_program_goes_on(directory, session):
    assert outcrop.versions("run", directory / "nowhere") == outcrop.versions("other", directory) == []
    for version in (3, 5):
        session.save(version, field=np.full((2, 3), version), step=version)
        session.wait(version)
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


def test_what_another_language_saved_is_plain_arrays(session):
    arrays = {"u": np.arange(4, dtype="f4"), "z": np.array([1 + 2j]), "ok": np.array([True, False])}
    session._save(1, [(name, None, array, None) for name, array in arrays.items()])
    version = session.latest()
    assert version.names == ["u", "z", "ok"]
    assert version["u"].tolist() == [0, 1, 2, 3] and version["u"].dtype == np.float32
    assert version["z"].tolist() == [1 + 2j] and version["ok"].tolist() == [True, False]


def test_repr_says_what_there_is(store, session):
    assert repr(store).startswith("<outcrop.Store, dir ") and "checkpoints" in repr(store)
    assert repr(session) == "<outcrop.Session 'run', 0 versions>"
    session.save(7, u=np.zeros(3), step=7)
    assert repr(session) == "<outcrop.Session 'run', 1 versions, newest 7>"
    assert repr(session.latest()) == "<outcrop.Version 7 of 'run': u, step>"


def test_threads_share_a_store(session):
    """One thread waits for versions while another saves them."""
    failures = []
    saved = threading.Semaphore(0)

    def wait():
        try:
            for version in range(1, 30):
                saved.acquire()
                session.wait(version)
        except BaseException as error:
            failures.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    for version in range(1, 30):
        session.save(version, u=np.full(10_000, version))
        saved.release()
    waiter.join()
    assert not failures and session.latest()["u"][0] == 29


def rank(number, directory, count):
    """One process of a run."""
    ranks = {"dir": directory / "ranks", "rank": number, "count": count}
    with outcrop.Store(dir=directory / "checkpoints", ranks=ranks, host="8 MiB", pin=False).session("run") as session:
        latest = session.latest()
        start = latest.number if latest else 0
        field = np.zeros(1000)
        if latest:
            latest.into(field=field)
            assert (field == start * 10 + number).all() and latest["who"] == number
        for version in range(start + 1, start + 3):
            field[:] = version * 10 + number
            session.save(version, field=field, who=number)
        session.wait(start + 2)


def test_ranks_save_and_restore_together(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    for _ in range(2):
        processes = [spawn.Process(target=rank, args=(number, tmp_path, 2)) for number in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(PATIENCE)
        assert [process.exitcode for process in processes] == [0, 0]


def boxed_rank(number, directory, count, version):
    """One process of a run with another number of ranks than the one before."""
    whole = np.arange(60 * 7, dtype="f4").reshape(60, 7)
    rows = slice(60 * number // count, 60 * (number + 1) // count)
    ranks = {"dir": directory / "ranks", "rank": number, "count": count}
    with outcrop.Store(dir=directory / "checkpoints", ranks=ranks, host="8 MiB", pin=False).session("run") as session:
        if version > 1:
            found = np.zeros_like(whole[rows])
            restored = session.restore(field=outcrop.boxed(found, whole.shape, (rows.start, 0)))
            assert restored.number == version - 1 and (found == whole[rows] * (version - 1)).all()
            assert restored["step"] == version - 1 and restored["name"] == "heat"
            assert (restored["field"] == whole * (version - 1)).all(), "without a box it is the whole array"
            share = restored.regions["particles"]
            particles = restored["particles"]
            first = share.box.offset[0]
            assert share.box.shape == (12, 2) and (particles[:, 0] == np.arange(first, first + len(particles))).all()
            again = np.zeros((3, 2))
            restored.into(particles=outcrop.listed(again, 5), field=outcrop.boxed(found.T.copy().T, whole.shape, (rows.start, 0)))
            assert (again[:, 0] == [5, 6, 7]).all()
        mine = np.arange(12)[12 * number // count : 12 * (number + 1) // count]
        particles = np.stack([mine, mine * 0], axis=1).astype("f8")
        field = outcrop.boxed(whole[rows] * version, whole.shape, (rows.start, 0))
        session.save(version, field=field, particles=outcrop.listed(particles), step=version, name="heat")
        session.wait(version)


def test_another_number_of_ranks_restores_boxes_and_lists(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    for version, count in enumerate((4, 3, 1, 2), 1):
        processes = [spawn.Process(target=boxed_rank, args=(number, tmp_path, count, version)) for number in range(count)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(PATIENCE)
        assert [process.exitcode for process in processes] == [0] * count


# A store of format 1, which says in a region of its own what the others are.
GOLDEN = pathlib.Path(__file__).parent / "../../../crates/catalog/tests/golden-v1"


def test_numbers_and_texts_are_saved_as_such(session, monkeypatch):
    monkeypatch.setattr(pickle, "dumps", lambda *_: pytest.fail("nothing is pickled"))
    values = {"i": -7, "f": 0.5, "b": True, "c": 1 - 2j, "s": "Größe", "none": ""}
    session.save(1, **values)
    version = session.latest()
    assert dict(version) == values
    assert [type(value) for value in version.values()] == [type(value) for value in values.values()]
    assert version._saved["s"].element == "text"


def test_numbers_and_texts_that_nobody_else_knows_are_pickled(session):
    values = {"large": 1 << 70, "half": "\ud800", "none": None, "numpy": np.float32(0.1)}
    session.save(1, **values)
    version = session.latest()
    assert dict(version) == values
    assert type(version["numpy"]) is np.float32


def test_shapes_and_dtypes_need_no_region_of_their_own(session):
    dtype = np.dtype([("x", ">f4"), ("when", "<M8[s]"), ("name", "<U3")])
    values = {
        "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "structure": np.zeros((2, 2), dtype),
        "swapped": np.arange(3, dtype=">i4"),
        "times": np.arange(5).astype("M8[s]"),
        "empty": np.zeros((3, 0), np.float16),
    }
    session.save(1, **values)
    assert session._regions(1)[0] == ("fortran", "f64", [3, 4], "F", None)
    assert {name for name, *_ in session._regions(1)} == set(values)
    version = session.latest()
    for name, value in values.items():
        assert version[name].dtype == value.dtype and version[name].shape == value.shape
        np.testing.assert_array_equal(version[name], value)
    assert version["fortran"].flags.f_contiguous
    target = np.zeros((2, 2), dtype)
    session.restore(structure=target)


def test_a_part_of_a_global_array_has_a_box(directory, session):
    rows, tile = np.arange(12.0).reshape(3, 4), np.asfortranarray(np.arange(6, dtype="i4").reshape(2, 3))
    values = {"rows": outcrop.boxed(rows, (9, 4), (6, 0)), "tile": outcrop.boxed(tile, [4, np.int64(8)], np.array([1, 2]))}
    # It is converted to C order.
    values["strided"] = outcrop.boxed(rows[::2, ::2], (2, 2), (0, 0))
    session.save(1, whole=rows, step=1, **values)
    session.wait(1)
    for version in (session.latest(), outcrop.read("run", directory)):
        regions = version.regions
        assert list(regions) == version.names == ["whole", "step", "rows", "tile", "strided"]
        assert regions["rows"].box == outcrop.Box((9, 4), (6, 0)) == ((9, 4), (6, 0))
        assert (regions["rows"].element, regions["rows"].dtype, regions["rows"].order) == ("f64", np.float64, "C")
        assert regions["tile"] == outcrop.SavedRegion("i32", np.dtype("i4"), (2, 3), "F", outcrop.Box((4, 8), (1, 2)))
        assert regions["strided"].box == ((2, 2), (0, 0)) and regions["strided"].shape == (2, 2)
        assert regions["whole"].box is None and regions["step"].box is None and regions["step"].shape == ()
        np.testing.assert_array_equal(version["tile"], tile)
        # The same box, or none.
        for into in (version.into, session.restore):
            for box in (lambda array: outcrop.boxed(array, (9, 4), (6, 0)), lambda array: array):
                found = np.zeros((3, 4))
                into(rows=box(found))
                np.testing.assert_array_equal(found, rows)
            # Another one is refused before anything is written.
            found = np.zeros((3, 4))
            with pytest.raises(outcrop.Usage, match=r"no rank has saved the element \(0, 0\)|not 3 x 4 at \(0, 0\) of 9 x 4"):
                into(rows=outcrop.boxed(found, (9, 4), (0, 0)))
            assert not found.any()


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (lambda: outcrop.boxed(np.zeros((3, 4)), (9, 4), (7, 0)), "not inside"),
        (lambda: outcrop.boxed(np.zeros((3, 4)), (9,), (7, 0)), "all three must be equal"),
        (lambda: outcrop.boxed(np.zeros((3, 4)), (9, 4), (-1, 0)), "from 0 upwards"),
        (lambda: outcrop.boxed(np.zeros((3, 4)), (9, 4.5), (0, 0)), "whole numbers"),
        (lambda: outcrop.boxed(np.zeros((3, 4)), 9, 0), "whole numbers"),
        (lambda: outcrop.boxed("text", (9, 4), (0, 0)), "only an array"),
    ],
)
def test_boxes_that_make_no_sense_are_refused_with_a_sentence(session, value, hint):
    with pytest.raises(outcrop.Usage, match=hint):
        session.save(1, field=value())
    assert session.versions == []


def test_a_store_of_format_1_is_read_and_goes_on(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "store")
    field = np.arange(12.0).reshape(3, 4, order="F")
    times = np.arange(5).astype("M8[s]")
    version = outcrop.read("arrays", tmp_path / "store")
    assert version.names == ["field", "times", "rng"] and version["rng"] == {"seed": 7}
    np.testing.assert_array_equal(version["field"], field)
    np.testing.assert_array_equal(version["times"], times)
    with outcrop.Store(dir=tmp_path / "store") as store:
        session = store.session("arrays")
        found, found_times = np.zeros((3, 4)), np.zeros(5, "M8[s]")
        assert session.restore(field=found, times=found_times).number == 3
        np.testing.assert_array_equal(found, field)
        np.testing.assert_array_equal(found_times, times)
        session.save(4, field=found + 1, times=found_times, rng=7)
        assert session.latest()["rng"] == 7
        np.testing.assert_array_equal(session.latest()["field"], field + 1)
