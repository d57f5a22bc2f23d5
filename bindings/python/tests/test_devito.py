"""The migration with Devito, small: the same image with a tape as with everything in memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE

if not os.environ.get("OUTCROP_TEST_ALL"):
    pytest.importorskip("devito")
    pytest.importorskip("matplotlib")

EXAMPLE = Path(__file__).parents[1] / "examples" / "devito_rtm.py"


def test_the_image_is_the_same(tmp_path):
    size = ["--shots=2", "--width=80", "--depth=60", "--blocks=60", "--host=1 MiB"]
    done = subprocess.run([sys.executable, EXAMPLE, *size], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "the images are the same, bit by bit" in done.stdout
    # Snapshots of 87 KiB: most of them did not stay in memory.
    (written,) = [line.split(":")[1].split()[0] for line in done.stdout.splitlines() if "went to the disk" in line]
    assert int(written) >= 4
    image = tmp_path / "devito_rtm.png"
    assert image.read_bytes().startswith(b"\x89PNG") and image.stat().st_size > 10_000
