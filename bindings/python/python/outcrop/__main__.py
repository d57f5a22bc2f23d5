"""python -m outcrop: measures."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from . import bench, peers


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
    command.add_argument("--quick", action="store_true", help="less of everything: under a minute, or some minutes with --peers")
    command.add_argument("--dir", default=".", help="where to make files, which are removed [default: here]")
    command.add_argument(
        "--peers",
        action="store_true",
        help="measure whole programs with tapes and stores of others (h5py, zarr, pyrevolve, a ring; PyTorch's checkpoints, "
        "safetensors, torchsnapshot, Orbax) instead, in an environment of their own that is made for it: some ten minutes, or "
        "five with --quick, and at first the time to install them",
    )
    command.add_argument("--venv", help="the environment for --peers [default: one in the cache directory of the user]")
    command.add_argument("--plot", default="outcrop-peers.png", help="where to draw what --peers has measured [default: %(default)s]")
    arguments = parser.parse_args()
    if arguments.peers:
        found = peers.bench(peers.QUICK if arguments.quick else peers.USUAL, arguments.dir, arguments.venv)
        if peers.plot(found, Path(arguments.plot), arguments.venv):
            peers.say(f"plot: {arguments.plot}")
        print(json.dumps(found) if arguments.json else peers.report(found))
        return
    found = bench.bench(bench.QUICK if arguments.quick else bench.Sizes(), arguments.dir)
    print(json.dumps(found) if arguments.json else bench.report(found))


if __name__ == "__main__":
    main()
