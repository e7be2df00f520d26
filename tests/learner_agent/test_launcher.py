"""The launcher with real programs: bytes, exit codes, signals, halts, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from learner_agent.halting import IMPORT_S
from learner_agent.log_segments import LogReader, Piece
from learner_agent.spool import Spool
from tests.learner_agent.harness import ROOT, TIMEOUT_S, until


class Launched:
    """One launcher over a spool of its own, with no shipper: the test plays its part."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.spool = Spool(home / "state")
        self.spool.root.mkdir(parents=True)
        self.env = {
            "PATH": os.environ["PATH"],
            "TRAINING_ID": "3f9k2m7qx4ta",
            "JOB_STATE_DIR": str(self.spool.root),
            "MODEL_DIR": str(home / "code"),
            "LUTHIER_GRACE_S": "1",
        }
        (home / "code").mkdir()
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self, command: str | list[str], *, ready: bool = True, program: str | None = None, **env: str
    ) -> None:
        if program is not None:
            (self.home / "code" / "train.py").write_text(program)
        argv = [sys.executable, str(ROOT / "learner_agent"), "launcher"]
        settings = self.env | env
        if isinstance(command, str):
            settings["TRAINING_COMMAND"] = command
        else:
            argv += ["--", *command]
        self.process = subprocess.Popen(argv, env=settings)
        if ready:
            self.make_ready()

    def make_ready(self, **what: Any) -> None:
        self.spool.write("ready", {"resume_from": None} | what)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(TIMEOUT_S)

    def halt(self, intent: str = "HALT", grace_s: float = 1, gen: int = 2) -> None:
        self.spool.write("halt", {"intent": intent, "gen": gen, "grace_s": grace_s})

    def log(self) -> bytes:
        reader, off, out = LogReader(self.spool), 0, b""
        while isinstance(found := reader.read(off), Piece):
            out += found.data
            off += len(found.data)
        return out

    def grows_old(self) -> None:
        """Wait until the program has had its time to import training, so that it is known whether it did."""
        time.sleep(IMPORT_S)

    def runs_with(self, changes: str, command: str) -> None:
        """Start the launcher as these lines leave it."""
        env = self.env | {"TRAINING_COMMAND": command, "PYTHONPATH": str(ROOT)}
        program = f"import sys\nfrom learner_agent import launcher\n{changes}\nsys.exit(launcher.main([]))\n"
        self.process = subprocess.Popen([sys.executable, "-c", program], env=env)
        self.make_ready()

    def says(self, text: bytes) -> None:
        until(lambda: text in self.log(), f"the program prints {text!r}")

    @property
    def ending(self) -> dict[str, Any]:
        ending = self.spool.read("exit")
        assert ending is not None
        return ending


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    one = Launched(tmp_path)
    yield one
    if one.process is not None:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_bytes_are_kept_exactly_and_in_order_over_both_streams(launched: Launched) -> None:
    program = r"""
import os, sys
for n in range(300):
    os.write(1 + n % 2, b"%d \xff\x00\r\x1b[31m no newline;" % n)
"""
    launched.start("python3 train.py", program=program)

    assert launched.wait() == 0

    expected = b"".join(b"%d \xff\x00\r\x1b[31m no newline;" % n for n in range(300))
    assert launched.log() == expected
    ending = launched.ending
    assert (ending["size"], ending["lines"], ending["crc"]) == (len(expected), 0, zlib.crc32(expected))
    assert (ending["code"], ending["signal"], ending["halted"], ending["finished"]) == (0, None, False, False)


def test_five_megabytes_at_once_lose_nothing(launched: Launched) -> None:
    launched.start(["python3", "-c", "import sys; sys.stdout.write('0123456789abcde\\n' * 330_000)"])

    assert launched.wait() == 0
    assert launched.log() == b"0123456789abcde\n" * 330_000


@pytest.mark.parametrize(
    ("command", "code", "number"),
    [
        ("exit 7", 7, None),
        ("kill -SEGV $$", 128 + signal.SIGSEGV, signal.SIGSEGV),
        ("no-such-program", 127, None),
    ],
)
def test_the_programs_end_is_the_launchers_end(
    launched: Launched, command: str, code: int, number: int | None
) -> None:
    launched.start(command)

    assert launched.wait() == code
    assert (launched.ending["code"], launched.ending["signal"]) == (code, number)


def test_a_command_that_cannot_be_executed_says_so_in_the_log(launched: Launched) -> None:
    launched.start(["/no/such/program"])

    assert launched.wait() == 127
    assert b"/no/such/program" in launched.log()


def test_the_program_starts_only_when_its_inputs_are_there(launched: Launched) -> None:
    launched.start("echo started; echo $RESUME_FROM $EXTRA; pwd", ready=False)
    time.sleep(0.3)
    assert launched.log() == b""

    launched.make_ready(resume_from="/somewhere/step-4", env={"EXTRA": "more"})

    assert launched.wait() == 0
    assert launched.log().decode().split() == [
        "started",
        "/somewhere/step-4",
        "more",
        launched.env["MODEL_DIR"],
    ]


def test_inputs_that_cannot_be_had_end_it_before_it_began_and_say_why(launched: Launched) -> None:
    launched.start("echo never", ready=False)
    launched.spool.write("refused", {"code": "data_error", "message": "data 'mnist' does not exist"})

    assert launched.wait() != 0
    assert launched.log() == b"luthier: data 'mnist' does not exist\n"
    assert launched.ending["started"] is False


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


SLOW_TO_REAP = """
import os, time
looks, reap = [], launcher.Launcher._reap
def slow(self):
    looks.append(time.monotonic())
    if self.status is None and looks[-1] - looks[0] > 1:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
    reap(self)
launcher.Launcher._reap = slow
"""


def test_the_last_words_of_a_quiet_program_are_kept_however_late_its_end_is_seen(launched: Launched) -> None:
    """They come and it ends after the launcher looked at the pipe: what it sees next is the end."""
    launched.runs_with(SLOW_TO_REAP, "echo up; sleep 2; echo last")

    assert launched.wait() == 0
    assert launched.log() == b"up\nlast\n"


def test_a_child_that_never_stops_printing_does_not_delay_the_end(launched: Launched) -> None:
    launched.start("(while true; do echo on; sleep 0.05; done) & echo last; exit 4")

    assert launched.wait() == 4
    assert b"last\n" in launched.log()


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


def test_when_the_launcher_dies_the_program_dies_with_it(launched: Launched) -> None:
    launched.start(
        "exec python3 train.py", program="import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n"
    )
    launched.says(b"\n")
    pid = int(launched.log())
    assert launched.process is not None

    launched.process.kill()

    until(lambda: not alive(pid), "the program is gone")
    assert launched.spool.launcher_lives() is False


def test_children_that_outlive_the_program_are_not_left_behind(launched: Launched) -> None:
    program = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
"""
    launched.start("python3 train.py", program=program)

    assert launched.wait() == 0
    pid = int(launched.log())
    until(lambda: not alive(pid), "the grandchild is gone")


def test_a_launcher_that_is_started_again_repeats_the_answer_and_runs_nothing(launched: Launched) -> None:
    launched.start("echo once; exit 5")
    assert launched.wait() == 5

    launched.start("echo twice; exit 6")

    assert launched.wait() == 5
    assert launched.log() == b"once\n"


def test_the_program_imports_training_but_nothing_else_of_ours(launched: Launched) -> None:
    program = """
import learner_agent.training
try:
    import portal
except ImportError:
    print("clean")
"""
    launched.start("python3 train.py", program=program, PYTHONPATH="/somewhere/else")

    assert launched.wait() == 0
    assert launched.log() == b"clean\n"


def test_what_is_missing_in_the_environment_is_named_all_at_once() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "learner_agent"), "launcher"], env={"LUTHIER_GRACE_S": "soon"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 78
    for name in ("JOB_STATE_DIR", "MODEL_DIR", "TRAINING_COMMAND", "LUTHIER_GRACE_S"):
        assert name in done.stderr


def test_reports_reach_the_spool_while_the_launcher_runs(launched: Launched) -> None:
    program = "from learner_agent import training\ntraining.report(3, total=9, loss=float('nan'))\n"
    launched.start("python3 train.py", program=program)

    assert launched.wait() == 0
    line = json.loads(launched.spool.metrics.read_text())
    assert (line["step"], line["total"], line["loss"]) == (3, 9, "NaN")
