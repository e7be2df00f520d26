"""Setup commands: before the program, in its environment, visible in its log, and its own failure if they fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from learner_agent.shipper.run import setup_failure
from tests.learner_agent.harness import until
from tests.learner_agent.launched import Launched, alive


@pytest.fixture
def launched(tmp_path: Path) -> Launched:
    return Launched(tmp_path)


def start(launched: Launched, setup: list[str], command: str = "echo program; cat made") -> None:
    launched.start(command, LUTHIER_SETUP=json.dumps(setup))


def test_setup_runs_before_the_program_in_its_folder_and_each_command_has_a_heading(
    launched: Launched,
) -> None:
    start(launched, ["echo one > made; printf unfinished", 'echo "$TRAINING_ID" >> made'])
    assert launched.wait() == 0
    assert launched.log().decode() == (
        "=== luthier: setup 1 of 2: echo one > made; printf unfinished ===\nunfinished\n"
        '=== luthier: setup 2 of 2: echo "$TRAINING_ID" >> made ===\n'
        "=== luthier: setup done; the program starts ===\nprogram\none\n3f9k2m7qx4ta\n"
    )


def test_a_setup_command_that_fails_ends_the_attempt_with_its_code_and_is_named(launched: Launched) -> None:
    start(launched, ["true", "false; exit 0", "echo never"])
    assert launched.wait() == 1  # sh -e
    assert b"never" not in launched.log()
    assert b"program\n" not in launched.log()
    assert b"luthier: setup command 2 of 3 exited with code 1: false; exit 0\n" in launched.log()
    ending = launched.spool.read("exit") or {}
    assert setup_failure(ending) == "Setup command 2 of 3 exited with code 1: false; exit 0"
    assert (ending["started"], ending["halted"]) == (True, False)


def test_a_setup_command_that_cannot_be_started_has_failed(launched: Launched) -> None:
    start(launched, ["rm -r $PWD", "echo never"])
    assert launched.wait() == 127
    assert b"luthier: cannot start the setup command: " in launched.log()
    assert setup_failure(launched.ending) == "Setup command 2 of 2 exited with code 127: echo never"


def test_a_program_that_fails_after_its_setup_is_no_failure_of_the_setup(launched: Launched) -> None:
    start(launched, ["true"], command="exit 4")
    assert launched.wait() == 4
    assert setup_failure(launched.spool.read("exit") or {}) is None


@pytest.mark.parametrize("command", ["echo here; sleep 60", "trap 'exit 0' TERM; echo here; sleep 60 & wait"])
def test_a_halt_during_the_setup_ends_it_and_starts_no_program(launched: Launched, command: str) -> None:
    start(launched, [command, "echo never"])
    launched.says(b"\nhere")
    launched.halt()
    launched.wait()
    ending = launched.spool.read("exit") or {}
    assert ending["halted"]
    assert setup_failure(ending) is None
    assert b"never" not in launched.log()
    assert b"program\n" not in launched.log()


def test_the_marks_of_a_setup_command_are_not_the_programs(launched: Launched) -> None:
    """A command that imports training must not make the platform believe that the program looks for a halt."""
    script = "python3 -c 'from learner_agent import training; training.halt_requested(); training.finish()'"
    start(launched, [script], command="ls $JOB_STATE_DIR; echo waits; sleep 60")
    until(lambda: b"waits\n" in launched.log(), "the program has begun")
    assert {"imported", "checks_halt", "finished"}.isdisjoint(launched.log().decode().split())
    launched.halt()
    launched.wait()


def test_the_setup_of_the_program_is_no_variable_of_it(launched: Launched) -> None:
    start(launched, ["true"], command="printenv LUTHIER_SETUP")
    assert launched.wait() == 1


SERVICE = "setsid sh -c 'echo $$ > service; exec sleep 100'%s & until [ -s service ]; do sleep 0.01; done"
OUTPUTS = ["", " >service.log 2>&1", " >/dev/null 2>&1 </dev/null"]


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_service_that_the_setup_started_lives_until_the_program_has_ended(
    launched: Launched, output: str
) -> None:
    start(launched, [SERVICE % output, "kill -0 $(cat service)"], "kill -0 $(cat service) && cat service")
    assert launched.wait() == 0
    pid = launched.log().splitlines()[-1]
    assert b"luthier: the command has ended" not in launched.log()
    until(lambda: not alive(int(pid)), "the service is gone")


def test_a_service_that_never_stops_printing_does_not_keep_the_program_from_its_start(
    launched: Launched,
) -> None:
    setup = "setsid sh -c 'trap \"\" PIPE; while :; do echo more 2>/dev/null; sleep 0.05; done' & true"
    start(launched, [setup], "echo program")
    assert launched.wait() == 0
    assert launched.log().endswith(b"starts ===\nprogram\n")


def test_a_service_ends_with_a_setup_that_fails(launched: Launched) -> None:
    start(launched, [SERVICE % OUTPUTS[1], "cat service; exit 3"])
    assert launched.wait() == 3
    pid = next(line for line in launched.log().splitlines() if line.isdigit())
    until(lambda: not alive(int(pid)), "the service is gone")


def test_what_stays_in_the_session_of_the_setup_ends_with_its_command(launched: Launched) -> None:
    setup = "sleep 100 >/dev/null 2>&1 & echo $! > helper"
    start(launched, [setup], "until ! kill -0 $(cat helper) 2>/dev/null; do sleep 0.01; done; echo program")
    assert launched.wait() == 0
    assert b"luthier: the command has ended" not in launched.log()


def test_what_the_program_leaves_is_named_even_if_its_setup_left_something(launched: Launched) -> None:
    start(launched, [SERVICE % OUTPUTS[1], "sleep 100 & true"], "setsid sleep 100 & echo program")
    assert launched.wait() == 0
    said = "luthier: the command has ended, so what it left running in the background was ended, too\n"
    assert launched.log().decode().endswith("starts ===\nprogram\n" + said)
    assert launched.log().decode().count(said) == 1
