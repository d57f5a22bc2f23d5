"""Ranks of an MPI communicator."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import outcrop

# One life of a rank, of a communicator in which the ranks have another order.
LIFE = """
import sys
import numpy as np
import outcrop
from mpi4py import MPI

world = MPI.COMM_WORLD
comm = world.Split(0, world.size - world.rank)
with outcrop.Store(dir=sys.argv[1], comm=comm, host="1 MiB", pin=False) as store:
    session = store.session("run")
    field = np.zeros(3000, dtype=np.int64)
    found = session.restore(field=field)
    newest = 0 if found is None else found.number
    assert (field == (comm.rank + 10 * newest if newest else 0)).all(), field
    field[:] = comm.rank + 10 * (newest + 1)
    session.save(newest + 1, field=field)
    session.wait(newest + 1)
    print(f"rank {comm.rank} of {comm.size} has saved {newest + 1}", flush=True)
"""

# What the layer has seen of the receives of a program, which has preloaded it.
RECEIVES = """
import ctypes
import numpy as np
from mpi4py import MPI

layer = ctypes.CDLL(None)
Note = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
layer.outcrop_mpi_watch.restype = ctypes.c_uint64
layer.outcrop_mpi_watch.argtypes = [ctypes.c_size_t] * 2
layer.outcrop_mpi_take.argtypes = [ctypes.c_uint64, Note, ctypes.c_void_p]
field = np.zeros(1000, dtype=np.int32)
base = field.ctypes.data
watch = layer.outcrop_mpi_watch(base, base + field.nbytes)
comm = MPI.COMM_WORLD
seen = []
note = Note(lambda _, begin, end: seen.append((begin - base, end - base)))
if comm.rank == 0:
    comm.Send(np.ones(10, dtype=np.int32), 1)
else:
    comm.Recv(field[5:40], 0)
comm.Bcast(field[100:107], 0)
request = comm.Irecv(field[200:220], 1 - comm.rank)
comm.Send(np.ones(20, dtype=np.int32), 1 - comm.rank)
request.Wait()
layer.outcrop_mpi_take(watch, note, None)
if comm.rank == 1:
    print("seen", seen, flush=True)
"""


def variables(tmp_path: Path) -> dict[str, str]:
    if shutil.which("mpirun") is None or shutil.which("mpicc") is None:
        if "OUTCROP_TEST_ALL" in os.environ:
            pytest.fail("there is no MPI")
        pytest.skip("there is no MPI")
    pytest.importorskip("mpi4py")
    return os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OUTCROP_MPI_DIR": str(tmp_path / "mpi"),
        "OUTCROP_MEETING_DIR": str(tmp_path),
    }


def test_the_ranks_of_a_communicator_save_together(tmp_path: Path) -> None:
    environment = variables(tmp_path)
    for version in (1, 2):
        command = ["mpirun", "-n", "2", sys.executable, "-c", LIFE, str(tmp_path / "store")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        for rank in (0, 1):
            assert f"rank {rank} of 2 has saved {version}" in done.stdout
    # The library that was compiled for it, preloaded.
    layer = next((tmp_path / "mpi").glob("*/liboutcrop-mpi.so"))
    command = ["mpirun", "-n", "2", "env", f"LD_PRELOAD={layer}", sys.executable, "-c", RECEIVES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert "seen [(20, 60), (400, 428), (800, 880)]" in done.stdout, done.stdout + done.stderr


def test_what_is_no_communicator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(outcrop.Usage, match="give a communicator of mpi4py"):
        outcrop.Store(dir=tmp_path, comm="world")
    with pytest.raises(outcrop.Usage, match="leave ranks out"):
        outcrop.Store(dir=tmp_path, comm=object(), ranks={"mpi": "world"})
    with pytest.raises(outcrop.Usage, match="this process has not loaded MPI; link the program"):
        outcrop.Store(dir=tmp_path, ranks={"mpi": "world"})
