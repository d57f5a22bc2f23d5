"""Type annotations: that they are those of the native half, and that a typed program passes."""

from pathlib import Path

import outcrop
import pytest

pytest.importorskip("mypy")

# Those for other packages need these, of which most have no annotations.
FOR_OTHERS = {"_peers_work", "adjoint", "dcp", "revolve", "schedules", "torch"}
# mypy is silent about what is installed, unless it is named.
PACKAGE = Path(outcrop.__file__).parent
MODULES = ["outcrop", *(f"outcrop.{path.stem}" for path in PACKAGE.glob("*.py") if path.stem not in FOR_OTHERS | {"__init__"})]


def test_the_stubs_describe_the_native_half(run):
    program = "import sys; from mypy import stubtest; sys.exit(stubtest.test_stubs(stubtest.parse_options(['outcrop._outcrop'])))"
    assert "no issues" in run(program)


def test_a_typed_program_passes(run, tmp_path):
    (tmp_path / "program.py").write_text("""
import numpy as np
import outcrop

with outcrop.Tape(host="1 MiB", dir=["a", {"path": "b", "limit": 5}], order=[1, 2], pin=False) as tape:
    tape.save(1, np.zeros(3))
    tape.save(np.int64(2), u=np.zeros(3), v=b"abc")
    with tape.lend(3, (2, 3), "f4") as u:
        u[:] = 1
    keys: list[int] = tape.keys()
with outcrop.Store(dir="checkpoints", keep_last=2) as store:
    session: outcrop.Session = store.session("run")
    version: outcrop.Version | None = session.restore(u=np.zeros(3))
    number: int = session.version(1).into(u=np.zeros(3)).number
    session.save(2, u=np.zeros(3), step=number)
release: str = outcrop.__version__
try:
    outcrop.read("run", "checkpoints", rank=1)
except (outcrop.Missing, KeyError):
    pass
""")
    check = """
import sys
from mypy import api
found, problems, code = api.run(sys.argv[1:])
print(found)
sys.exit(found + problems if code else 0)
"""
    modules = [argument for module in MODULES for argument in ("-m", module)]
    assert "no issues" in run(check, "--strict", "--cache-dir", tmp_path / "cache", "-m", "program", *modules)
