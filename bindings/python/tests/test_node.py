"""The node daemon: files whose bytes go to spare memory of the machine first."""

import array
import gc
import mmap
import os
import shutil
import signal
import subprocess
import threading

import numpy as np
import outcrop
import pytest
from outcrop import Node

pytestmark = pytest.mark.skipif(shutil.which("outcrop") is None, reason="the program outcrop is not in PATH")

MIB = 1 << 20


@pytest.fixture
def node(tmp_path):
    with Node(directory=tmp_path / "node", memory="16 MiB", idle_seconds=3) as node:
        yield node


def test_what_is_written_is_read_and_drained(node, tmp_path):
    field = np.arange(500_000.0).reshape(1000, 500)
    with node.open(tmp_path / "file") as file:
        file.write(7, field)
        assert file.size == 7 + field.nbytes
        assert file.read(7, field.nbytes + 100) == field.tobytes() and file.read(0, 7) == bytes(7)
        back = np.empty_like(field)
        assert file.read_into(7, back) == field.nbytes and (back == field).all()
        file.drain()
        assert (tmp_path / "file").read_bytes()[7:] == field.tobytes()
        file.resize(10)
        assert file.read(0, 100) == bytes(7) + field.tobytes()[:3] and file.read(2**63, 5) == b""
        file.sync()
        assert repr(file).startswith("<outcrop.NodeFile ") and file.path == tmp_path / "file"
    assert file.closed and repr(file).endswith(", closed>")
    assert node.status()["limit_bytes"] == 16 * MIB and not node.closed


def test_every_kind_of_buffer_is_written_without_a_copy(node, tmp_path):
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    mapped = mmap.mmap(-1, 4096)
    mapped[:3] = b"map"
    values = [b"bytes", bytearray(b"bytearray"), memoryview(b"view"), array.array("d", [1.5, 2.5]), fortran, mapped, np.float32(2)]
    with node.open(tmp_path / "file") as file:
        for value in values:
            expected = value.tobytes("A") if isinstance(value, np.ndarray) else memoryview(value).tobytes()
            file.resize(0)
            file.write(0, value)
            assert file.read(0, MIB) == expected
            file.write_async(3, value).wait()
            assert file.read(3, MIB) == expected
        file.write(0, np.arange(10)[::2])
        assert file.read(0, 40) == np.arange(0, 10, 2).tobytes()
        file.write(5, b"")
        for wrong in ["text", 5, None, [1, 2], np.array([object()]), np.ma.array([1.0])]:
            with pytest.raises(outcrop.Usage):
                file.write(0, wrong)
    large = np.zeros(40 * MIB, "u1")
    with node.open(tmp_path / "large") as file:
        daemon = node.status()["process"]
        os.kill(daemon, signal.SIGSTOP)  # It grants no memory, so the end of the array is not read yet.
        pending = file.write_async(0, large)
        large[-1] = 9
        assert not pending.done()
        os.kill(daemon, signal.SIGCONT)
        pending.wait()
        assert file.read(40 * MIB - 1, 5) == b"\x09"


def test_pending_writes_keep_their_arrays_and_their_order(node, tmp_path):
    with node.open(tmp_path / "file") as file:
        pending = [file.write_async(nth * MIB, np.full(MIB, nth, "u1")) for nth in range(100)]
        gc.collect()
        assert file.size == 100 * MIB  # Other calls come after them.
        assert all(write.done() for write in pending)
        for write in pending:
            write.wait()
            write.wait()
        for value in range(100):
            file.write_async(10, np.full(3 * MIB, value, "u1"))
        file.sync()
    found = np.fromfile(tmp_path / "file", "u1")
    assert (found[10 : 10 + 3 * MIB] == 99).all() and (found[4 * MIB :] == np.repeat(np.arange(4, 100), MIB)).all()


def test_what_is_pending_is_written_before_the_program_ends(run, tmp_path):
    run(
        """
import sys, numpy as np, outcrop
node = outcrop.Node(directory=sys.argv[1] + "/node", memory="8 MiB", idle_seconds=3)
file = node.open(sys.argv[1] + "/file")
for nth in range(30):
    file.write_async(nth << 20, np.full(1 << 20, nth, "u1"))
""",
        tmp_path,
    )
    with Node(directory=tmp_path / "node", idle_seconds=3) as node:
        node.drain_all()
    assert (np.fromfile(tmp_path / "file", "u1") == np.repeat(np.arange(30), MIB)).all()


def test_threads_write_at_once(node, tmp_path):
    with node.open(tmp_path / "file") as file:
        values = np.random.default_rng(1).integers(0, 255, (8, 2 * MIB), "u1")

        def write(nth):
            for at in range(0, 2 * MIB, 1 << 17):
                file.write(nth * 2 * MIB + at, values[nth, at : at + (1 << 17)])

        threads = [threading.Thread(target=write, args=(nth,)) for nth in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        file.drain()
    assert (np.fromfile(tmp_path / "file", "u1").reshape(8, -1) == values).all()


def test_a_daemon_that_is_killed_loses_nothing(node, tmp_path):
    with node.open(tmp_path / "file") as file:
        for nth in range(8):
            values = np.random.default_rng(nth).integers(0, 255, 12 << 18, "u1")
            daemon = node.status()["process"]
            pending = []
            for at in range(12):
                pending.append(file.write_async(at << 18, values[at << 18 : (at + 1) << 18]))
                if at == nth:
                    os.kill(daemon, signal.SIGKILL)
            for write in pending:
                write.wait()
            assert file.read(0, values.nbytes) == values.tobytes()
            assert node.status()["process"] != daemon
        file.drain()
    assert (tmp_path / "file").read_bytes() == values.tobytes()


@pytest.fixture
def small(tmp_path):
    """A file system of 1 MiB."""
    target = tmp_path / "small"
    target.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", target], capture_output=True).returncode != 0:
        pytest.skip("this user cannot mount file systems")
    yield target
    subprocess.run(["umount", "-l", target], check=True)


def test_a_full_target_is_told_to_the_write_that_finds_it_so(node, tmp_path, small):
    values = np.random.default_rng(1).integers(0, 255, 3 * MIB, "u1")
    file = node.open(small / "file")
    other = node.open(tmp_path / "other")
    file.write_async(0, values).wait()
    while not any(found["error"] for found in node.status()["files"]):
        pass
    pending = [file.write_async(nth, values[nth : nth + 1]) for nth in range(3)]
    other.write_async(0, values).wait()
    pending[1].wait()
    pending[2].wait()
    with pytest.raises(outcrop.Storage, match=f"cannot write to {small}/file: No space left") as raised:
        pending[0].wait()
    assert raised.value.errno == 28 and isinstance(raised.value, OSError)
    with pytest.raises(outcrop.Storage, match="cannot drain"):
        file.drain()
    assert file.read(0, 3 * MIB) == values.tobytes()
    file.resize(100)
    file.close()
    node.drain_all()
    assert (small / "file").read_bytes() == values.tobytes()[:100]


def test_what_makes_no_sense_is_refused(node, tmp_path):
    with pytest.raises(outcrop.Usage, match="did you mean memory"):
        Node(memry="1 GiB")
    with pytest.raises(outcrop.Usage, match="lower limit"):
        Node(directory=tmp_path / "huge", memory="9999999 GiB")
    with pytest.raises(outcrop.Missing, match="outcrop node start"):
        Node(directory=tmp_path / "none", start=False)
    with pytest.raises(outcrop.Missing, match="no-such-program"):
        Node(directory=tmp_path / "none", program="no-such-program")
    with pytest.raises(outcrop.WrongType, match="no path"):
        node.open(5)
    with pytest.raises(outcrop.WrongType, match="must be a node"):
        outcrop.NodeFile("node", tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="cannot open"):
        node.open(tmp_path / "no" / "such" / "file")
    with pytest.raises(IsADirectoryError):
        node.open(tmp_path)
    with pytest.raises(outcrop.Usage, match="regular file"):
        node.open("/dev/null")
    file = node.open(tmp_path / "file")
    for call in [lambda: file.write(-1, b"x"), lambda: file.write(1.5, b"x"), lambda: file.resize(-1), lambda: file.read(0, -1)]:
        with pytest.raises(outcrop.Usage, match="whole number"):
            call()
    for call in [lambda: file.write(2**64 - 2, b"xx"), lambda: file.resize(2**63), file.write_async(2**63, b"x").wait]:
        with pytest.raises(outcrop.Usage, match="File too large"):
            call()
    constant = np.zeros(5)
    constant.flags.writeable = False
    with pytest.raises(outcrop.Usage, match="writable"):
        file.read_into(0, constant)
    file.write(0, constant)
    file.close()
    file.close()
    with pytest.raises(outcrop.Usage, match="closed"):
        file.write(0, b"x")
    with pytest.raises(outcrop.Usage, match="closed"):
        file.size
    kept = node.open(tmp_path / "kept")
    node.close()
    assert kept.closed and node.closed and repr(node) == "<outcrop.Node, closed>"
    with pytest.raises(outcrop.Usage, match="closed"):
        node.open(tmp_path / "file")


def test_a_forked_child_is_refused(node, tmp_path):
    file = node.open(tmp_path / "file")
    pending = file.write_async(0, b"parent")
    child = os.fork()
    if child == 0:
        refused = 0
        for call in [lambda: file.write(0, b"child"), pending.wait, pending.done, file.close, node.status, node.close]:
            try:
                call()
            except outcrop.Usage:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
    pending.wait()
    file.write(6, b" goes on")
    assert file.read(0, 100) == b"parent goes on"


def test_ctrl_c_ends_a_call_that_waits(run, tmp_path):
    said = run(
        """
import os, signal, sys, threading, time, numpy as np, outcrop
node = outcrop.Node(directory=sys.argv[1] + "/node", memory="8 MiB", idle_seconds=3)
file = node.open(sys.argv[1] + "/file")
daemon = node.status()["process"]
os.kill(daemon, signal.SIGSTOP)  # It answers nobody.
threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
for call in [lambda: file.write(0, bytes(1 << 20)), file.drain]:
    try:
        call()
        sys.exit("it did not wait")
    except KeyboardInterrupt:
        print("ended")
    threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    time.sleep(100)
except KeyboardInterrupt:
    pass
os.kill(daemon, signal.SIGCONT)
file.sync()
assert file.size == 1 << 20
""",
        tmp_path,
    )
    assert said.count("ended") == 2
