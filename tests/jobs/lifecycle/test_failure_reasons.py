"""One diagnosis of a failure: stored when the attempt ends, and the same in the job, its event, attempt and phase."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.clusters.base import EndReason
from jobs.selectors.failures import last_failures
from jobs.selectors.jobs import job_get
from jobs.selectors.serializers import JobSerializer
from jobs.states import Phase, State
from portal.pages.cells import detail
from tests.jobs.lifecycle.world import World, gang, job_of, last_move
from tests.jobs.test_log_lines import store

NO_MODULE = b"step 1\nTraceback (most recent call last):\n  File 'x.py'\nModuleNotFoundError: No module named 'timm'\n"
PEER = (
    b"Traceback (most recent call last):\n  File 'x'\nRuntimeError: Connection closed by peer [10.0.0.7]:1\n"
)
WHY = (
    "Learner 1 could not import the module timm (log line 4). List it in requirements, add it to the code, or use an"
    " environment that has it."
)


def fail(world: World, job: Any, codes: dict[int, int], logs: dict[int, bytes]) -> None:
    """The program's learners end in this order, with these codes and last words; the rest is stopped."""
    for rank, code in codes.items():
        store(job_of(job), [logs.get(rank, b"")], rank=rank)
        world.exit(job, code, rank=rank)
    world.settle()
    world.done(job)
    world.elapse(10)
    world.settle()


def test_every_place_says_the_same_of_a_failure(world: World) -> None:
    job = world.running(learners=2)
    fail(world, job, {1: 1, 0: 143}, {1: NO_MODULE, 0: b"fine\n"})
    failed = job_of(job)
    assert (failed.state, failed.reason_message) == (State.FAILED, WHY)
    assert last_move(job).message == WHY
    assert job.attempts.get().message == WHY
    view = JobSerializer.render(job_get(user=world.alice, job_id=job.pk))
    assert view["reason"]["message"] == detail(view) == WHY
    numbers = view["reason"]["numbers"]
    assert {name: numbers[name] for name in ("learner", "attempt", "line", "cause", "exit_code")} == {
        "learner": 1,
        "attempt": 1,
        "line": 4,
        "cause": "import_error",
        "exit_code": 1,
    }


def test_the_learner_that_another_one_lost_is_named_not_the_one_that_noticed_first(world: World) -> None:
    job = world.running(learners=2)
    fail(world, job, {0: 1, 1: 1}, {0: PEER, 1: NO_MODULE})
    assert job_of(job).reason_message == WHY


def test_where_only_a_lost_connection_is_known_the_sentence_says_that(world: World) -> None:
    job = world.running(learners=2)
    fail(world, job, {0: 1, 1: 143}, {0: PEER})
    assert "Learner 0 lost the connection to another learner" in job_of(job).reason_message


def test_a_single_learner_loses_no_other_one(world: World) -> None:
    job = world.running()
    fail(world, job, {0: 1}, {0: PEER})
    assert job_of(job).reason_message.startswith(
        "Learner 0 failed with RuntimeError: Connection closed by peer"
    )


def test_memory_used_is_stated_against_its_limit(world: World) -> None:
    job = world.running()
    world.cluster.out_of_memory(gang(job), 0, peak_mib=4321)
    world.elapse(10)
    world.settle()
    failed = job_of(job)
    assert failed.reason_message == (
        "Learner 0 used 4321 MiB of memory; its limit is 1024 MiB. It was killed. Request more memory."
    )
    assert (failed.reason_code, failed.reason_numbers["cause"]) == ("out_of_memory", "out_of_memory")


def test_a_setup_command_that_failed_is_still_named_once_the_log_is_complete(world: World) -> None:
    job = world.running(max_restarts=0)
    said = "Setup command 2 of 2 exited with code 3: exit 3"
    world.report(job, 0, error_code="setup_failed", message=said)
    fail(world, job, {0: 3}, {0: b"luthier: setup command 2 of 2 exited with code 3: exit 3\n"})
    failed = job_of(job)
    assert (failed.state, failed.reason_code) == (State.FAILED, "setup_failed")
    assert said in failed.reason_message
    assert (failed.reason_numbers["learner"], failed.reason_numbers["line"]) == (0, 1)


def test_a_job_that_fails_again_and_again_is_in_a_restart_loop_and_keeps_its_diagnosis(world: World) -> None:
    job = world.running(max_restarts=19)
    for _ in range(3):
        fail(world, job, {0: 1}, {0: NO_MODULE})
        shown = JobSerializer.render(job_get(user=world.alice, job_id=job.pk))
        world.elapse(400)
        world.settle()
        world.report(job, phase=Phase.PROCESSING)
        world.settle()
    assert (shown["state"], shown["phase"]) == ("QUEUED", "Restart loop")
    assert shown["reason"]["message"].startswith("Learner 0 could not import the module timm (log line 4).")
    assert "Restart 3 of 19 after 10 s." in shown["reason"]["message"]
    assert last_failures([job])[job.pk].numbers["line"] == 4


def test_a_stop_of_the_platform_is_not_the_failure_of_a_job_in_a_restart_loop(world: World) -> None:
    job = world.running(max_restarts=19)
    fail(world, job, {0: 1}, {0: NO_MODULE})
    world.elapse(400)
    world.settle()
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    world.cluster.die(gang(job), 0, reason=EndReason.PLATFORM_STOPPED)
    world.settle()
    world.elapse(10)
    world.settle()
    moves = job.events.filter(from_state=State.STOPPING, to_state=State.QUEUED).order_by("n")
    assert [move.reason for move in moves] == ["learner_failed", "platform_stopped"]
    assert last_failures([job])[job.pk].numbers["line"] == 4
