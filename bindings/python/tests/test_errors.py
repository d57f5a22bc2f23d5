"""What is refused, with which exception, and what a Python program expects of tapes, sessions and stores."""

import errno
import inspect
import os
import pickle

import numpy as np
import outcrop
import pytest


@pytest.fixture
def tape():
    with outcrop.Tape(host="1 MiB", pin=False) as tape:
        tape.save(1, np.arange(3.0))
        yield tape


@pytest.fixture
def store(tmp_path):
    with outcrop.Store(dir=tmp_path / "checkpoints", host="4 MiB", pin=False) as store:
        yield store


@pytest.fixture
def session(store):
    session = store.session("run")
    session.save(1, u=np.zeros(3), name="x")
    return session


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda tape: tape.save("one", np.zeros(3)), "'one' is a str, and must be a whole number"),
        (lambda tape: tape.take(1.5), "1.5 is a float"),
        (lambda tape: tape.get(None), "None is a NoneType"),
        (lambda tape: tape.discard("a"), "'a' is a str"),
        (lambda tape: tape.lend(2, 3, "nonsense"), "'nonsense' is no dtype"),
        (lambda tape: tape.lend("a", 3), "'a' is a str"),
        (lambda tape: tape.write_trace(5), "5 is no path"),
    ],
)
def test_wrong_types_are_errors_of_outcrop_and_of_python(tape, call, hint):
    with pytest.raises(outcrop.WrongType, match=hint) as caught:
        call(tape)
    assert isinstance(caught.value, (outcrop.Usage, TypeError))
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, outcrop.OutcropError)


@pytest.mark.parametrize(
    ("call", "error", "hint"),
    [
        (lambda session: session.save("one", u=1), outcrop.WrongType, "'one' is a str"),
        (lambda session: session.version("one"), outcrop.WrongType, "'one' is a str"),
        (lambda session: session.version(-1), outcrop.Usage, "-1.*from 0 upwards"),
        (lambda session: session.rewind(-1), outcrop.Usage, "-1.*from 0 upwards"),
        (lambda session: session.wait(1, -1), outcrop.Usage, "-1.*from 0 upwards"),
        (lambda session: session.wait(1, "x"), outcrop.WrongType, "'x' is a str"),
        (lambda session: session.has_reached(1, -1), outcrop.Usage, "from 0 upwards"),
        (lambda session: session.mark_dirty("nothing"), outcrop.Missing, "no nothing.*it has u, name"),
        (lambda session: session.mark_dirty("u", -1), outcrop.Usage, "-1"),
        (lambda session: session.mark_dirty("u", 5, 3), outcrop.Usage, "5 to 3"),
        (lambda session: session.save(2, f=lambda: 0), outcrop.Usage, "f is a function, and cannot be pickled"),
        (lambda session: session[9], outcrop.Missing, "no version 9"),
        (lambda session: outcrop.read(5, "x"), outcrop.WrongType, "5 is a int"),
        (lambda session: outcrop.versions(5, "x"), outcrop.WrongType, "5 is a int"),
        (lambda session: outcrop.read("run", 5), outcrop.WrongType, "5 is no path"),
    ],
)
def test_calls_of_a_session_that_make_no_sense_are_refused(session, call, error, hint):
    with pytest.raises(error, match=hint):
        call(session)
    assert session.versions == [1]


def test_arrays_that_are_none_are_refused(tape):
    with pytest.raises(outcrop.Usage, match="list.*array"):
        tape.save(2, [[1], [2, 3]])


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"helper_cores": [99999]}, "helper_cores: core 99999"),
        ({"helper_cores": 700}, "helper_cores: core 700"),
        ({"patience_seconds": float("nan")}, "patience_seconds is nan; numbers must be finite"),
        ({"patience_seconds": 1e300}, "patience_seconds: it is 1e300;"),
        ({"pin": "yes"}, "pin is 'yes'; write True or False"),
        ({"trace": 1}, "trace is 1; write True or False"),
        ({"helpers": 10**9}, "helpers: it is 1000000000; write a whole number from 1 to 4096"),
        ({"copy_threads": 10**9}, "copy_threads: it is 1000000000; write a whole number from 1 to 4096"),
        ({"layers": 5}, r"write a table \(dictionary\) with device"),
        ({"order": {1, 2}}, "order is {1, 2}"),
        ({"host": object}, "host is <class 'object'>"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(settings, hint):
    with pytest.raises(outcrop.Usage, match=hint):
        outcrop.Tape(**{"host": "1 MiB", "pin": False, **settings})


def test_a_store_says_what_is_wrong_with_a_setting(tmp_path):
    for settings, hint in (
        ({"keep_last": 0}, "keep_last: it is 0"),
        ({"block": 100}, "block: 100 bytes is not possible"),
        ({"failures_seconds": 0}, "failures_seconds: it is 0; write a number of seconds above 0"),
        ({"interval": "young", "failures_seconds": [60, 0]}, "failures_seconds: it is 0"),
        ({"threads": 10**9}, "threads: it is 1000000000; write a whole number from 1 to 4096"),
        ({"certain": 1}, "certain is 1; write True or False"),
    ):
        with pytest.raises(outcrop.Usage, match=hint):
            outcrop.Store(dir=tmp_path, **settings)


def test_numbers_and_truth_of_numpy_are_settings(tmp_path):
    with outcrop.Store(dir=tmp_path, keep_last=np.int32(2), incremental=np.True_, keep_seconds=np.float32(5), pin=False):
        pass


def test_bytes_are_paths_too(tmp_path):
    with outcrop.Tape(host="1 MiB", dir=os.fsencode(tmp_path / "scratch"), pin=False) as tape:
        assert tape.stats()["layers"][1]["name"].endswith("scratch")


def test_errors_of_the_system_are_those_of_python(tmp_path):
    (tmp_path / "file").touch()
    calls = {
        errno.ENOENT: (FileNotFoundError, lambda: outcrop.read("run", tmp_path / "nowhere")),
        errno.EEXIST: (FileExistsError, lambda: outcrop.Store(dir=tmp_path / "file")),
        errno.ENOTDIR: (NotADirectoryError, lambda: outcrop.Tape(host="1 MiB", dir=tmp_path / "file" / "x")),
    }
    calls = [*calls.items(), (errno.ENOENT, (FileNotFoundError, lambda: outcrop.Tape(host="1 MiB", profile=tmp_path / "no")))]
    for number, (kind, call) in calls:
        with pytest.raises(outcrop.Storage) as caught:
            call()
        error = caught.value
        assert isinstance(error, kind) and error.errno == number and error.strerror == os.strerror(number)
        assert str(tmp_path) in str(error) and "Errno" not in str(error)
        assert type(error).__name__ == "Storage" and type(error).__module__ == "outcrop"
        again = pickle.loads(pickle.dumps(error))
        assert isinstance(again, (outcrop.Storage, kind)) and str(again) == str(error)


@pytest.mark.parametrize("path", ["/sys/kernel/outcrop", "/proc/outcrop"])
def test_what_the_system_refuses_is_refused_as_by_python(path):
    with pytest.raises(OSError, match=path) as expected:
        os.mkdir(path)
    for call in (lambda: outcrop.Store(dir=path), lambda: outcrop.Tape(host="1 MiB", dir=path, pin=False)):
        with pytest.raises(outcrop.Storage, match=path) as caught:
            call()
        assert isinstance(caught.value, type(expected.value)) and caught.value.errno == expected.value.errno


def test_a_tape_is_a_mapping_to_look_at(tape):
    tape.save(7, u=np.ones(2))
    assert list(tape) == tape.keys() == [1, 7] and len(tape) == 2
    np.testing.assert_array_equal(tape[1], [0, 1, 2])
    assert list(tape[7]) == ["u"] and 1 in tape and 2 not in tape
    with pytest.raises(KeyError):
        tape[2]
    with pytest.raises(outcrop.Missing):
        tape.get(2)
    assert tape.get(2, None) is None and tape.get(2, 5) == 5 and tape.get(1, None) is not None
    assert "one" not in tape and -1 not in tape and None not in tape


def test_a_session_is_a_mapping_of_versions(store, session):
    session.save(5, u=np.ones(3))
    assert list(session) == [1, 5] and len(session) == 2 and 5 in session and 2 not in session and "x" not in session
    assert session[5]["u"].sum() == 3 and session.get(2) is None and session.get(5).number == 5
    assert bool(store.session("other"))
    session.flush()
    assert sorted(store) == ["other", "run"] and len(store) == 2 and "run" in store and "none" not in store and 5 not in store
    with pytest.raises(outcrop.OutcropError):
        store.session("run")


def test_pickles_can_be_forbidden(tmp_path):
    with outcrop.Store(dir=tmp_path, host="4 MiB", pin=False).session("run") as session:
        session.save(1, u=np.zeros(3), about={"a": 1})
    with outcrop.Store(dir=tmp_path, host="4 MiB", pin=False, allow_pickle=False) as store:
        session = store.session("run")
        for version in (session.latest(), outcrop.read("run", tmp_path, allow_pickle=False)):
            assert version["u"].sum() == 0
            with pytest.raises(outcrop.Usage, match="about.*allow_pickle"):
                version["about"]
        with pytest.raises(outcrop.Usage, match="about is a dict.*allow_pickle"):
            session.save(2, u=np.zeros(3), about={"a": 1})
        session.save(2, u=np.zeros(3), step=5, text="x")
    assert outcrop.read("run", tmp_path, 1)["about"] == {"a": 1}


def test_settings_are_in_the_signature():
    for kind, names in ((outcrop.Tape, ["host", "order"]), (outcrop.Store, ["dir", "keep_last", "allow_pickle"])):
        parameters = inspect.signature(kind).parameters
        assert set(names) < set(parameters)
        assert {parameter.kind for parameter in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}


def test_incomplete_versions_can_be_forgotten(session):
    session.forget_incomplete()
    assert session.versions == [1]
