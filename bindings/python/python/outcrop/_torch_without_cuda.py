"""Lets PyTorch's ordinary wheel be imported without the CUDA packages that it depends on.

The wheel of the package index is the one for CUDA, with dependencies of several gigabytes. Tests that compute on the processor
need none of them, but the loader insists on libraries of these names. This makes one library that has all the functions that the
wheel asks for, each of which says "no device", and gives it all the names. Only for tests and benchmarks:

    pip install --no-deps torch && python _torch_without_cuda.py
"""

import importlib.util
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# How the names of the libraries, and of their functions, begin.
LIBRARIES = ("libcu", "libnv", "libnccl")
FUNCTIONS = ("cu", "__cuda", "nccl", "nv")
# That of the driver is looked for where there is a device only.
DRIVER = "libcuda.so.1"
# cudaErrorNoDevice, but a text for those who ask for one.
NO_DEVICE = "long {name}(void) {{ return 100; }}\n"
TEXT = 'const char *{name}(void) {{ return "a stand-in"; }}\n'


def listed(*command: str) -> list[str]:
    """The last word of each line that a program prints."""
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [line.split()[-1] for line in printed.splitlines() if line.split()]


def build(functions: set[str], path: Path) -> None:
    """A library of functions, which are given as name or name@version."""
    versions = defaultdict(list)
    source = ""
    for function in sorted(functions):
        name, _, version = function.partition("@")
        source += (TEXT if "GetError" in name else NO_DEVICE).format(name=name)
        if version:
            versions[version].append(name)
    script = "".join(f"{version} {{ {'; '.join(names)}; }};\n" for version, names in versions.items())
    with tempfile.NamedTemporaryFile("w", suffix=".map") as file:
        file.write(script)
        file.flush()
        command = ["gcc", "-shared", "-fPIC", f"-Wl,--version-script={file.name}", "-xc", "-", "-o", str(path)]
        subprocess.run(command, input=source, text=True, check=True)


def main() -> None:
    # Next to this file is another `torch`.
    sys.path.remove(str(Path(__file__).resolve().parent))
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit("install torch first: pip install --no-deps torch")
    torch = Path(spec.origin).parent
    needed, functions = set(), set()
    for library in (torch / "lib").glob("*.so"):
        needed |= {name.strip("[]") for name in listed("readelf", "-dW", str(library))}
        functions |= set(listed("nm", "-D", "--undefined-only", "--with-symbol-versions", str(library)))
    needed = {name for name in needed if name.startswith(LIBRARIES) and name != DRIVER}
    functions = {name for name in functions if name.startswith(FUNCTIONS)}
    # Where the wheel's libraries look for the packages'.
    major = next(name for name in needed if name.startswith("libcudart")).rsplit(".", 1)[1]
    place = torch.parent / "nvidia" / f"cu{major}" / "lib"
    place.mkdir(parents=True, exist_ok=True)
    build(functions, place / "standin.so")
    for name in needed:
        (place / name).unlink(missing_ok=True)
        (place / name).symlink_to("standin.so")
    print(f"{len(functions)} functions stand in for {', '.join(sorted(needed))}")


if __name__ == "__main__":
    main()
