"""What the tests share."""

import collections
import os
import subprocess
import sys

import pytest

# How long a process may take, in seconds. It is there to end what hangs, and nothing else: test machines are busy.
PATIENCE = 900

# What sweeps have covered, by its name. The last lines that pytest prints say it, and `cargo xtask soak` makes a table of them.
covered = collections.Counter()


def pytest_terminal_summary(terminalreporter):
    for what, count in covered.items():
        terminalreporter.write_line(f"COVERED {what}: {count}")


@pytest.fixture
def run(tmp_path):
    """Runs a Python program in a process of its own and gives what it printed. It must end by itself, and well."""

    def run(program, *arguments, **environment):
        done = subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
        return done.stdout

    return run
