"""The launcher with real programs: bytes, exit codes, and nothing left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import zlib

import pytest

from tests.learner_agent.harness import ROOT, until
from tests.learner_agent.launched import Launched, alive


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


def test_a_command_of_several_lines_ends_at_the_first_that_fails_with_its_code(launched: Launched) -> None:
    launched.start("echo one\nX=two\necho $X\n(exit 3)\necho never")

    assert launched.wait() == 3
    assert launched.log() == b"one\ntwo\n"


def test_a_command_of_one_line_may_go_on_after_a_failure(launched: Launched) -> None:
    launched.start("false; echo after")

    assert launched.wait() == 0
    assert launched.log() == b"after\n"


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
    pid = int(launched.log().split()[0])
    until(lambda: not alive(pid), "the grandchild is gone")


@pytest.mark.parametrize("output", ["", " >train.log 2>&1", " >/dev/null 2>&1 </dev/null"])
@pytest.mark.parametrize("start", ["", "setsid "])
def test_the_log_says_that_what_ran_in_the_background_was_ended(
    launched: Launched, start: str, output: str
) -> None:
    launched.start(f"echo begun; {start}sleep 100{output} & printf done; exit 0")
    assert launched.wait() == 0
    said = b"luthier: the command has ended, so what it left running in the background was ended, too\n"
    assert launched.log() == b"begun\ndone\n" + said


@pytest.mark.parametrize("command", ["true", "sleep 0.1 & wait", "printf x | cat", "sleep 100 & exit 3"])
def test_nothing_is_said_of_what_ended_itself_or_failed(launched: Launched, command: str) -> None:
    launched.start(command)
    launched.wait()
    assert b"luthier" not in launched.log()


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


def test_values_of_secrets_are_masked_before_a_byte_is_stored(launched: Launched) -> None:
    secrets = {"LUTHIER_SECRET_NAMES": "TOKEN", "TOKEN": "s3cr3t-of-the-program", "OTHER": "shown"}
    program = """if True:
        import os, sys, time
        token = os.environ["TOKEN"]
        assert len(token) == 21
        print("token", token, os.environ["OTHER"])
        for letter in token:
            sys.stderr.write(letter)
            sys.stderr.flush()
            time.sleep(0.01)
        sys.stderr.write("\\nends with s3cr3t-of")
    """
    launched.start("python3 train.py", program=program, **secrets)
    assert launched.wait() == 0
    printed = launched.log()
    assert sorted(printed.split(b"\n")) == sorted([b"token *** shown", b"***", b"ends with s3cr3t-of"])
    ending = launched.ending
    assert (ending["size"], ending["crc"]) == (len(printed), zlib.crc32(printed))
    for path in launched.spool.root.rglob("*"):
        assert not path.is_file() or b"s3cr3t-of-the-program" not in path.read_bytes(), path
