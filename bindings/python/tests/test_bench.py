"""The benchmark: that it measures what it says, and leaves nothing behind. Not how fast anything is."""

import json

from outcrop import bench

TINY = bench.Sizes(calls=50, state_bytes=4 << 20, rtm_bytes=8 << 20, rtm_state_bytes=1 << 20, rtm_host_bytes=4 << 20, rounds=2)


def test_everything_is_measured_and_nothing_left(tmp_path):
    found = json.loads(json.dumps(bench.bench(TINY, tmp_path)))
    assert list(tmp_path.iterdir()) == []
    assert found["bench"] == "python" and found["machine"]["cores"] >= 1
    ways = {(run["part"], run["way"]) for run in found["runs"]}
    assert {("call", "tape, take"), ("state", "store, save"), ("state", "numpy.save"), ("rtm", "tape, lend")} <= ways
    assert {"call_overhead_us", "rtm_blocked_over_copy", "numpy_save_over_ours"} <= set(found["ratios"])
    assert all(run.get("blocked_seconds", 1) > 0 for run in found["runs"])
    report = bench.report(found)
    assert "tape, lend" in report and "aim: at most 1.3" in report


def test_the_program_explains_itself(run):
    program = "import sys, runpy; sys.argv[1:] = ['bench', '--help']; runpy.run_module('outcrop', run_name='__main__')"
    help = run(program)
    assert "--quick" in help and "dcp.async_save" in help
