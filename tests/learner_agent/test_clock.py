"""The wall clock of a learner's machine may jump: times in logs follow it, and nothing waits for it."""

from __future__ import annotations

import ast

from learner_agent import untrusted_files
from tests.learner_agent.harness import ROOT, until
from tests.learner_agent.launched import Launched

JUMPS = """
import itertools, time
real, jumps = time.time, itertools.cycle([0, -7200, 7200, -86400])
time.time = lambda: real() + next(jumps)
"""
LINES = "\n".join(f"line {n}" for n in range(200))
PROGRAM = f"""
import time
print({LINES!r}, flush=True)
while True:
    time.sleep(0.02)
"""
WALL_CLOCK = {
    "time.time": {"now_ms", "report"},
    "time.time_ns": {"put_aside", "log_stamp", "_saved_ns", "dated"},
}
"""Functions that may read it: for people, and in the line of a metric; for the name of what is put aside; to see
whether a folder's own time is too new to rely on, which a clock that was set back makes it, and costs a look each; and
for the order of checkpoints, which only ever goes up."""


def test_a_launcher_whose_clock_jumps_keeps_all_lines_and_halts_in_its_grace(launched: Launched) -> None:
    (launched.home / "code" / "train.py").write_text(PROGRAM)
    launched.runs_with(JUMPS, "python3 train.py")
    launched.says(b"line 199")

    launched.halt(grace_s=1)

    assert launched.wait() != 0
    assert launched.log().decode().splitlines()[:200] == LINES.splitlines()
    assert launched.ending["halted"] is True
    until(lambda: launched.spool.has("exit"), "its end is reported")


def test_the_agent_waits_by_no_wall_clock() -> None:
    found = {
        (path.name, function.name, ast.unparse(call.func))
        for path in (ROOT / "learner_agent").rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in (*WALL_CLOCK, "datetime.now", "datetime.utcnow")
    }
    assert untrusted_files.now_ms.__name__ in {function for _, function, _ in found}
    assert not {one for one in found if one[1] not in WALL_CLOCK.get(one[2], ())}
