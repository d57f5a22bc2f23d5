"""Data types: what comes back is what was saved, or it was refused."""

import hypothesis
import numpy as np
import outcrop
import pytest
import test_model
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

PLAIN = [("a", "<f4"), ("b", ">i2", (2,))]
KEPT = {
    "titles": np.dtype([(("The first", "a"), "f8"), (("The second", "b"), "i2")]),
    "overlapping": np.dtype({"names": ["all", "low", "high"], "formats": ["u4", "u2", "u2"], "offsets": [0, 0, 2]}),
    "aligned": np.dtype([("a", "u1"), ("b", "f8")], align=True),
    "padded": np.dtype({"names": ["a"], "formats": ["f4"], "offsets": [4], "itemsize": 16}),
    "backwards": np.dtype({"names": ["b", "a"], "formats": ["u2", "u2"], "offsets": [2, 0]}),
    "nested": np.dtype([("in", np.dtype([("x", "u1"), ("y", "f8")], align=True), (2, 3)), (("Title", "t"), "M8[ms]")]),
    "aligned around what is not": np.dtype([("a", "u1"), ("in", np.dtype([("x", "u1"), ("y", "f8")]))], align=True),
    "braces": np.dtype([("{a}", "f8")]),
    "plain": np.dtype(PLAIN),
}
REFUSED = {
    "metadata of a number": np.dtype("i4", metadata={"enum": {"A": 1}}),
    "metadata of a field": np.dtype([("a", np.dtype("f8", metadata={"unit": "m"}))]),
}


NUMBERS = st.one_of(hnp.scalar_dtypes(), hnp.unicode_string_dtypes(min_len=1), st.sampled_from(["V3", ">f4", "g", "S2"]))
TITLES = st.one_of(st.none(), st.text(min_size=1, max_size=3), st.integers(0, 5))


@st.composite
def structures(draw, parts):
    """A structure of these parts, in any layout that NumPy allows."""
    names = draw(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=3, unique=True))
    shapes = st.sampled_from([(), (), (2,), (2, 3)])
    layout = {"names": names, "formats": [np.dtype((draw(parts), draw(shapes))) for _ in names]}
    if draw(st.booleans()):
        layout["titles"] = [draw(TITLES) for _ in names]
    if draw(st.booleans()):
        layout |= {"offsets": [draw(st.integers(0, 20)) for _ in names], "itemsize": draw(st.integers(1, 100))}
    if draw(st.booleans()):
        layout["aligned"] = True
    try:
        return np.dtype(layout)
    except (ValueError, TypeError):
        hypothesis.reject()


def is_same(one, other):
    return one == other and one.fields == other.fields and one.isalignedstruct == other.isalignedstruct and str(one) == str(other)


@pytest.mark.parametrize("name", KEPT)
def test_structures_come_back_as_they_were(tmp_path, name):
    dtype = KEPT[name]
    values = np.frombuffer(np.random.default_rng(1).bytes(6 * dtype.itemsize), dtype).reshape(2, 3)
    with outcrop.Tape(host="1 MiB", pin=False) as tape, outcrop.Store(dir=tmp_path, host="4 MiB", pin=False) as store:
        session = store.session("run")
        tape.save(1, values)
        with tape.lend(2, values.shape, dtype) as lent:
            lent[:] = values
        session.save(1, u=values)
        back = np.zeros((2, 3), dtype)
        session.restore(u=back)
        found = [tape.take(1), tape.take(2), session.latest()["u"], back]
        session.flush()
        found.append(outcrop.read("run", tmp_path)["u"])
        for array in found:
            assert is_same(array.dtype, dtype)
            np.testing.assert_array_equal(array, values)


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_not_come_back_is_refused(tmp_path, name):
    values = np.zeros(3, REFUSED[name])
    with outcrop.Tape(host="1 MiB", pin=False) as tape, outcrop.Store(dir=tmp_path, host="4 MiB", pin=False) as store:
        session = store.session("run")
        for call in (lambda: tape.save(1, values), lambda: tape.lend(1, 3, values.dtype), lambda: session.save(1, u=values)):
            with pytest.raises(outcrop.Usage, match="metadata"):
                call()
        assert len(tape) == 0 and session.versions == []


@hypothesis.settings(test_model.PROFILE, max_examples=3000 if test_model.SOAK else 100)
@hypothesis.given(dtype=st.recursive(NUMBERS, structures, max_leaves=4).map(np.dtype))
def test_any_structure_comes_back_as_it_was(dtype):
    values = np.zeros(3, dtype)
    with outcrop.Tape(host="1 MiB", pin=False) as tape:
        tape.save(1, values)
        found = tape.take(1)
    assert is_same(found.dtype, dtype) and found.tobytes() == values.tobytes()


def test_many_values_are_read_together(tmp_path, monkeypatch):
    values = {f"v{number}": np.full(100 + number % 7, number) for number in range(3000)}
    values["large"] = np.arange(100_000)
    with outcrop.Store(dir=tmp_path, host="16 MiB", pin=False).session("run") as session:
        session.save(1, **values, text="x", number=5, about={"a": 1})
        version, calls = session.latest(), []
        read = outcrop.Session._read
        monkeypatch.setattr(outcrop.Session, "_read", lambda *arguments: (calls.append(1), read(*arguments))[1])
        found = dict(version)
        assert len(calls) < 10
        assert (found.pop("text"), found.pop("number"), found.pop("about")) == ("x", 5, {"a": 1})
        for name, value in values.items():
            np.testing.assert_array_equal(found[name], value)
        version["v5"][:] = 0
        assert version["v5"].all(), "each time another copy"


def test_a_live_save_of_a_memory_map_copies(tmp_path):
    field = np.memmap(tmp_path / "field", np.float64, "w+", shape=100_000)
    field[:] = 7
    with outcrop.Store(dir=tmp_path / "checkpoints", host="4 MiB", pin=False, live="4 MiB").session("run") as session:
        for version in (1, 2):
            session.save(version, field=field)
            field[:] = version
        session.flush()
        assert session[1]["field"].sum() == 700_000 and session[2]["field"].sum() == 100_000
