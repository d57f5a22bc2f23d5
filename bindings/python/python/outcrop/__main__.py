"""python -m outcrop: measures."""

from __future__ import annotations

import argparse
import json

from . import bench


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m outcrop", description="Keeps the states that a simulation passes through.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser(
        "bench",
        help="measure save and take against copies, numpy.save, h5py, torch.save and dcp.async_save",
        description="Measures save and take against numpy copies, numpy.save, and, where they are installed, h5py, torch.save and "
        "dcp.async_save, in the same run. Needs 8 GB of memory and 10 GB of disk.",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    command.add_argument("--quick", action="store_true", help="less of everything: under a minute")
    command.add_argument("--dir", default=".", help="where to make files, which are removed [default: here]")
    arguments = parser.parse_args()
    found = bench.bench(bench.QUICK if arguments.quick else bench.Sizes(), arguments.dir)
    print(json.dumps(found) if arguments.json else bench.report(found))


if __name__ == "__main__":
    main()
