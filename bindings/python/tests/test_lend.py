"""Lent slots: whoever can still write to one when it is sealed does not reach the snapshot."""

import numpy as np
import outcrop
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view


@pytest.fixture
def tape():
    with outcrop.Tape(host="1 MiB", pin=False) as tape:
        yield tape


class Own(np.ndarray):
    """A subclass, as those of other packages."""


class Holder:
    """What holds an array in some way of its own."""

    def __init__(self, array):
        self.array = array


ESCAPES = {
    "view": lambda u: u[3:5],
    "view of a view": lambda u: u.reshape(2, 5)[1],
    "sliding_window_view": lambda u: sliding_window_view(u, 3, writeable=True),
    "as_strided": lambda u: as_strided(u, (5,), (16,)),
    "subclass": lambda u: u.view(Own),
    "masked array": lambda u: np.ma.array(u, copy=False).data,
    "nditer": lambda u: np.nditer(u, op_flags=["readwrite"]),
    "memoryview": memoryview,
    "from_dlpack": np.from_dlpack,
    "ctypes": np.ctypeslib.as_ctypes,
    "base": lambda u: u.base,
    "interface": lambda u: Holder(u.__array_interface__ | {"keeps": u}),
}


def write(escaped):
    """Writes to it in every way that may work."""
    if isinstance(escaped, np.nditer):
        for value in escaped:
            value[...] = 99
    elif isinstance(escaped, Holder):
        np.asarray(type("Interface", (), {"__array_interface__": escaped.array})())[...] = 99
    else:
        np.asarray(escaped)[...] = 99


@pytest.mark.parametrize("has_name", [True, False])
@pytest.mark.parametrize("name", ESCAPES)
def test_what_escapes_does_not_rewrite_a_snapshot(tape, name, has_name):
    with tape.lend(1, 10) as u:
        u[:] = 1
        escaped = ESCAPES[name](u)
        if not has_name:
            u = None
    try:
        write(escaped)
    except ValueError:
        assert name == "base", "this one has become read-only"
    assert tape.take(1).tolist() == [1] * 10
    del escaped, u
    # Nothing is held any more.
    tape.save(2, np.ones(900 * 1024, "u1"))


def address(array):
    return array.__array_interface__["data"][0]


def test_what_is_alone_is_not_copied(tape):
    with tape.lend(1, 10) as u:
        u[:] = 1
    assert address(tape.get(1)) == address(u)
    with tape.lend(2, 10) as u:
        other = alias = u  # names are no views
    assert address(tape.get(2)) == address(alias) == address(other)
    lent = tape.lend(3, u=(10, "f8"), v=(5, "i4"))
    arrays = lent.__enter__()
    v = arrays["v"]
    lent.seal()
    assert address(tape.get(3)["v"]) == address(v)


def test_a_name_of_a_module_counts_as_one(run):
    program = """
import numpy as np, outcrop
def address(array):
    return array.__array_interface__["data"][0]
with outcrop.Tape(host="1 MiB", pin=False) as tape:
    with tape.lend(1, 10) as u:
        u[:] = 1
    print(address(tape.get(1)) == address(u))
    def shared():
        with tape.lend(2, 10) as v:
            v[:] = 1
            keep = lambda: v  # a closure may be called at any time, from anywhere
        return address(tape.get(2)) == address(v)
    print(shared())
"""
    assert run(program) == "True\nFalse\n"


def test_no_slot_is_held_by_looking_for_names(tape):
    def step(key):
        with tape.lend(key, 300 * 1024, "u1") as u:
            u[:] = key

    for key in range(20):
        step(key)
        assert tape.take(key)[0] == key
        with tape.lend(key, 700 * 1024, "u1") as u:
            u[:] = key
        del u
        tape.discard(key)


def test_a_copy_that_finds_no_room_leaves_no_snapshot(tape):
    with pytest.raises(outcrop.OutcropError):
        with tape.lend(1, 700 * 1024, "u1") as u:
            view = u[1:]
    assert 1 not in tape
    del u, view
    tape.save(1, np.ones(700 * 1024, "u1"))
