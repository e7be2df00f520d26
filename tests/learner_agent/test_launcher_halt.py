"""What the launcher does on a halt: the flag, signals to the whole group, and what counts as halted."""

from __future__ import annotations

import shutil
import signal
import time

import pytest
import yaml

from learner_agent.halting import IMPORT_S
from learner_agent.shipper.metrics.reported import ReportedMetrics
from learner_agent.spool import Spool
from tests.documents import commands
from tests.learner_agent.harness import ROOT, until
from tests.learner_agent.launched import Launched

AWARE = """
import os, signal, sys, time
from learner_agent import training
signal.signal(signal.SIGTERM, lambda *_: print("TERM", flush=True))
print("up", flush=True)
while True:
    time.sleep(0.02)
    if training.halt_requested() and "stop" in sys.argv:
        print("saw it", flush=True)
        sys.exit(0)
"""


def test_a_program_that_imports_training_sees_the_flag_and_no_signal(launched: Launched) -> None:
    launched.start("python3 train.py stop", program=AWARE)
    launched.says(b"up")

    launched.halt(grace_s=30)

    assert launched.wait() == 0
    assert launched.log() == b"up\nsaw it\n"
    assert launched.ending["halted"] is True


def test_a_program_in_any_language_is_halted_by_the_files_that_the_page_names(launched: Launched) -> None:
    [script] = [block.text for block in commands("program")]
    launched.start(script)
    until(lambda: launched.spool.metrics.exists(), "it reports")

    launched.halt(grace_s=AGES_S)

    assert launched.wait() == 0
    assert (launched.ending["halted"], launched.ending["finished"]) == (True, False)
    assert launched.spool.has("checks_halt")
    reports = ReportedMetrics(launched.spool).read()
    assert reports is not None
    assert reports.steps is not None
    assert reports.total == 3000
    saved = launched.spool.root / "checkpoints" / "step"
    assert int(saved.read_text()) == reports.steps[1], "the step of its last report is saved"

    launched.spool, before = Spool(launched.home / "again"), launched.spool.root
    launched.spool.root.mkdir()
    shutil.copytree(before / "checkpoints", launched.spool.root / "checkpoints")
    launched.env["JOB_STATE_DIR"] = str(launched.spool.root)
    saved = launched.spool.root / "checkpoints" / "step"
    saved.write_text("2999\n")
    launched.start(script)

    assert launched.wait() == 0
    assert launched.log() == b"begins after step 2999\n"
    assert (launched.ending["halted"], launched.ending["finished"]) == (False, True)


def test_one_that_does_not_react_gets_term_after_the_grace_and_kill_after_as_much_again(
    launched: Launched,
) -> None:
    launched.start("exec python3 train.py", program=AWARE)
    launched.says(b"up")
    began = time.monotonic()

    launched.halt(grace_s=1)

    assert launched.wait() == 128 + signal.SIGKILL
    assert time.monotonic() - began > 1.9
    assert launched.log() == b"up\nTERM\n"
    assert launched.ending["halted"] is True


AGES_S = 600
"""A grace that nothing here waits for: what happens all the same did not wait for its end."""

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("TERM", flush=True))
print("up", flush=True)
while True:
    time.sleep(0.02)
"""


def test_any_other_program_gets_term_at_once_and_kill_after_the_grace(launched: Launched) -> None:
    launched.start("exec python3 train.py", program=STUBBORN)
    launched.says(b"up")
    launched.grows_old()

    launched.halt(grace_s=AGES_S)

    launched.says(b"TERM")
    began = time.monotonic()
    launched.halt("CANCEL", grace_s=1, gen=3)
    assert launched.wait() == 128 + signal.SIGKILL
    assert time.monotonic() - began > 0.9
    assert launched.log() == b"up\nTERM\n"


LATE = """
import json, os, pathlib, time
seen = pathlib.Path(os.environ["JOB_STATE_DIR"], "halt_seen")
print("up", flush=True)
while not seen.exists():
    time.sleep(0.01)
from learner_agent import training
print("imported", flush=True)
while not json.loads(seen.read_text())["aware"]:
    time.sleep(0.01)
print("saw it", training.halt_requested(), flush=True)
"""


def test_a_program_that_has_just_begun_may_still_import_training_and_then_sees_the_flag(
    launched: Launched,
) -> None:
    (launched.home / "code" / "train.py").write_text(LATE)
    launched.runs_with("launcher.halting.IMPORT_S = 600.0", "exec python3 train.py")
    launched.says(b"up")

    launched.halt(grace_s=AGES_S)
    launched.says(b"imported")
    launched.halt(grace_s=AGES_S, gen=3)  # its receipt says whether the program sees the flag

    assert launched.wait() == 0
    assert launched.log() == b"up\nimported\nsaw it True\n"
    assert launched.ending["halted"] is True


def test_one_that_has_just_begun_and_never_imports_it_gets_term_a_moment_later(launched: Launched) -> None:
    began = time.monotonic()
    launched.start("exec python3 train.py", program=STUBBORN)
    launched.says(b"up")

    launched.halt(grace_s=1)

    assert launched.wait() == 128 + signal.SIGKILL
    assert time.monotonic() - began > IMPORT_S + 0.9
    assert launched.log() == b"up\nTERM\n"


SAVING = """
import pathlib, signal, sys, time
def save(*_):
    print("saving", flush=True)
    time.sleep(2)
    pathlib.Path("saved").write_text("whole")
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(60)
"""
IN_SHELLS = [
    "python3 train.py && echo more",
    "cd . && python3 train.py",
    "sh -c 'sh -c \"python3 train.py; true\"; true'",
    "cd .\npython3 train.py\necho more",
]


@pytest.mark.parametrize("command", IN_SHELLS)
def test_a_shell_that_dies_of_the_halt_costs_no_save_of_what_it_runs(
    launched: Launched, command: str
) -> None:
    launched.start(command, program=SAVING)
    launched.says(b"up")

    launched.halt(grace_s=AGES_S)

    launched.wait()
    assert launched.log().startswith(b"up\nsaving\n")
    assert (launched.home / "code" / "saved").read_text() == "whole"
    assert launched.ending["halted"] is True


def piped() -> list[str]:
    """The command of docs/programs.md for output that is piped."""
    page = (ROOT / "docs" / "programs.md").read_text()
    (block,) = (block for block in page.split("```yaml\n") if block.startswith("command: [bash"))
    command = yaml.safe_load(block.partition("```")[0])["command"]
    return [word.replace("python ", "python3 ") for word in command]


def test_a_reader_of_the_output_that_ignores_the_signal_lets_the_program_save(launched: Launched) -> None:
    launched.start(piped(), program=SAVING)
    launched.says(b"up")

    launched.halt(grace_s=AGES_S)

    launched.wait()
    assert (launched.home / "code" / "saved").read_text() == "whole"
    assert launched.log() == (launched.home / "code" / "train.log").read_bytes() == b"up\nsaving\nsaved\n"
    assert launched.ending["halted"] is True


def test_a_failure_is_seen_through_the_pipe(launched: Launched) -> None:
    launched.start(piped(), program="raise SystemExit(4)")
    assert launched.wait() == 4


@pytest.mark.parametrize("command", IN_SHELLS)
def test_what_ignores_the_signal_below_a_shell_is_killed_after_the_grace(
    launched: Launched, command: str
) -> None:
    """However much it prints."""
    program = STUBBORN.replace("    time.sleep(0.02)", "    time.sleep(0.02)\n    print('on', flush=True)")
    launched.start(command, program=program)
    launched.says(b"up")
    launched.grows_old()
    began = time.monotonic()

    launched.halt(grace_s=2)

    launched.wait()
    assert time.monotonic() - began > 1.9
    assert b"TERM" in launched.log()


def test_a_cancel_still_reaches_what_saves_below_a_dead_shell(launched: Launched) -> None:
    launched.start("python3 train.py; true", program=SAVING.replace("sleep(2)", "sleep(600)"))
    launched.says(b"up")
    launched.halt(grace_s=AGES_S)
    launched.says(b"saving")
    time.sleep(0.6)

    launched.halt("CANCEL", grace_s=1, gen=3)

    launched.wait()
    assert not (launched.home / "code" / "saved").exists()


def test_a_cancel_is_quick_even_for_a_program_that_looks_for_the_flag(launched: Launched) -> None:
    launched.start("exec python3 train.py", program=AWARE)
    launched.says(b"up")

    launched.halt("CANCEL", grace_s=AGES_S)

    launched.says(b"TERM")


def test_a_signal_to_the_launcher_is_the_same_request_and_a_second_one_changes_nothing(
    launched: Launched,
) -> None:
    launched.start("exec python3 train.py", program=STUBBORN)
    launched.says(b"up")
    assert launched.process is not None

    for _ in range(3):
        launched.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)

    assert launched.wait() == 128 + signal.SIGKILL
    assert launched.log().count(b"TERM") == 1
    assert launched.ending["halted"] is True


def test_a_program_that_ended_by_itself_was_not_halted_by_a_request_it_never_saw(launched: Launched) -> None:
    program = "from learner_agent import training\nimport time\nprint('up', flush=True)\ntime.sleep(0.6)\n"
    launched.start("python3 train.py", program=program)
    launched.says(b"up")
    launched.halt(grace_s=30)

    assert launched.wait() == 0
    assert launched.ending["halted"] is False


def test_a_halt_before_the_start_starts_nothing(launched: Launched) -> None:
    launched.start("echo never", ready=False)
    until(lambda: launched.spool.has("lock"), "the launcher waits")
    launched.halt()

    assert launched.wait() == 128 + signal.SIGTERM
    assert launched.log() == b""
    assert (launched.ending["started"], launched.ending["halted"]) == (False, True)
