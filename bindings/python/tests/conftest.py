"""What the tests share."""

import os
import subprocess
import sys

import pytest


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
            timeout=120,
        )
        assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
        return done.stdout

    return run
