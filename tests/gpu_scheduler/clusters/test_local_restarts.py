"""The node daemon goes and comes: what its learners notice, and what the next one knows."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.clusters.base import LearnerPhase
from tests.gpu_scheduler.clusters.harness import launch
from tests.gpu_scheduler.clusters.learners import ended, learners, marked, pids, running
from tests.gpu_scheduler.clusters.node_daemon import NodeDaemon, running_daemon, wait_for


def test_learners_outlive_a_killed_daemon_and_the_next_one_knows_them(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs", "runs"))
    running(daemon)
    before, launchers = learners(daemon), pids(daemon, "launcher")
    daemon.kill()
    assert pids(daemon, "launcher") == launchers
    daemon.start()
    assert learners(daemon) == before
    daemon.cluster.stop("job-x-1", grace_s=5)
    assert [learner.exit_code for learner in ended(daemon)] == [143, 143]


def test_a_shipper_that_outlived_an_upgrade_is_replaced_beside_its_running_program(
    daemon: NodeDaemon,
) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    wait_for(lambda: pids(daemon, "shipper"))
    launchers, shippers = pids(daemon, "launcher"), pids(daemon, "shipper")
    daemon.kill()
    daemon.start()
    assert (pids(daemon, "launcher"), pids(daemon, "shipper")) == (launchers, shippers), "of the same code"
    daemon.kill()
    file = daemon.data / "nodes" / ".gangs" / "job-x-1.json"
    saved = json.loads(file.read_text())
    del saved["learners"][0]["shipper_code"]  # as an earlier version wrote it
    file.write_text(json.dumps(saved))
    daemon.start()
    wait_for(lambda: len(pids(daemon, "shipper")) == 1 and pids(daemon, "shipper") != shippers)
    assert pids(daemon, "launcher") == launchers
    daemon.cluster.stop("job-x-1", grace_s=5)
    (learner,) = ended(daemon)
    assert (learner.exit_code, learner.reason) == (143, "exited")


def test_a_shipper_that_the_server_does_not_understand_is_started_again(daemon: NodeDaemon) -> None:
    """75: the server speaks another version. The next one is of the installed code."""
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    fault, lives = daemon.learner("job-x-1") / "fault", daemon.learner("job-x-1") / "state" / "shipper_lives"
    wait_for(lambda: lives.exists() and lives.read_text().split())
    launchers, (shipper,) = pids(daemon, "launcher"), pids(daemon, "shipper")
    fault.write_text("75")
    os.kill(shipper, signal.SIGKILL)
    wait_for(lambda: len(lives.read_text().split()) >= 3)
    fault.unlink()
    wait_for(lambda: pids(daemon, "shipper"))
    assert pids(daemon, "launcher") == launchers
    assert learners(daemon)[0].phase is LearnerPhase.RUNNING
    daemon.cluster.stop("job-x-1", grace_s=5)
    assert ended(daemon)[0].reason == "exited"


def test_a_dead_launcher_is_reported_before_its_shipper_has_said_how_it_ended(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    assert not learners(daemon)[0].program_ended
    assert learners(daemon)[0].may_run
    (launcher,), (shipper,) = pids(daemon, "launcher"), pids(daemon, "shipper")
    daemon.kill()
    os.kill(shipper, signal.SIGSTOP)
    os.kill(launcher, signal.SIGKILL)
    daemon.start()
    assert [(one.phase, one.program_ended, one.may_run) for one in learners(daemon)] == [
        (LearnerPhase.RUNNING, True, False)
    ]
    os.kill(shipper, signal.SIGCONT)
    assert ended(daemon)[0].reason == "launcher_lost"


def test_a_program_that_ends_while_no_daemon_looks_keeps_its_exit_code(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    (launcher,) = pids(daemon, "launcher")
    daemon.kill()
    os.kill(launcher, signal.SIGTERM)
    wait_for(lambda: not pids(daemon, "shipper"))
    daemon.start()
    (learner,) = ended(daemon)
    assert (learner.phase, learner.exit_code, learner.reason) == (LearnerPhase.FAILED, 143, "exited")


def test_a_start_that_was_never_noted_down_is_found_by_its_mark(daemon: NodeDaemon) -> None:
    """As if the daemon had been killed between starting the processes and writing their numbers."""
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    processes = sorted(pids(daemon, "launcher") + pids(daemon, "shipper"))
    daemon.kill()
    file = daemon.data / "nodes" / ".gangs" / "job-x-1.json"
    saved = json.loads(file.read_text())
    saved["learners"][0] |= {"launcher": None, "shipper": None, "phase": "PREPARING"}
    file.write_text(json.dumps(saved))
    daemon.start()
    wait_for(lambda: learners(daemon)[0].phase is LearnerPhase.RUNNING)
    assert sorted(pids(daemon, "launcher") + pids(daemon, "shipper")) == processes


def test_a_start_cut_in_the_middle_is_carried_on_by_the_next_daemon(daemon: NodeDaemon) -> None:
    """As if the daemon had been killed after it started the first learner of two."""
    daemon.cluster.launch(launch("job-x-1", "runs", "runs"))
    running(daemon)
    (first,) = [pid for pid in pids(daemon, "launcher") if marked(pid, "LUTHIER_RANK=0")]
    daemon.kill()
    for pid in daemon.processes():
        if marked(pid, "LUTHIER_RANK=1"):
            with suppress(ProcessLookupError):  # the shipper leaves when the launcher is dead
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(daemon.learner("job-x-1", 1))
    file = daemon.data / "nodes" / ".gangs" / "job-x-1.json"
    saved = json.loads(file.read_text())
    for learner in saved["learners"]:
        learner |= {"launcher": None, "shipper": None, "phase": "PREPARING"}
    file.write_text(json.dumps(saved))
    daemon.start()
    wait_for(lambda: all(learner.phase is LearnerPhase.RUNNING for learner in learners(daemon)))
    running(daemon)
    assert first in pids(daemon, "launcher")
    assert len(pids(daemon, "launcher")) == len(pids(daemon, "shipper")) == 2


def test_a_number_given_to_another_process_is_not_mistaken_for_the_learner(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    daemon.kill()
    file = daemon.data / "nodes" / ".gangs" / "job-x-1.json"
    saved = json.loads(file.read_text())
    for which in ("launcher", "shipper"):
        saved["learners"][0][which] |= {"pid": os.getpid()}
    file.write_text(json.dumps(saved))
    daemon.start()
    (learner,) = ended(daemon)
    assert (learner.reason, learner.exit_code) == ("launcher_lost", None)
    assert not pids(daemon, "launcher")


def test_sigterm_stops_learners_with_grace_and_they_end_as_stopped_with_the_platform(
    daemon: NodeDaemon,
) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs", "exits:0"))
    running(daemon)
    wait_for(lambda: learners(daemon)[1].phase is LearnerPhase.SUCCEEDED)
    assert daemon.terminate() == 0
    assert daemon.processes() == []
    daemon.start()
    stopped, finished = learners(daemon)
    assert (stopped.phase, stopped.reason, stopped.exit_code) == (
        LearnerPhase.FAILED,
        "platform_stopped",
        143,
    )
    assert finished.phase is LearnerPhase.SUCCEEDED


def test_a_shutdown_marks_only_programs_that_still_run(daemon: NodeDaemon) -> None:
    """What has ended only delivers: a finished program must not run again, and a failed one stays failed."""
    spec = launch("job-x-1", "runs", "exits:0", "exits:1")
    faults = [daemon.learner("job-x-1", rank, spec.learners[rank].node) / "fault" for rank in (1, 2)]
    for fault in faults:
        fault.parent.mkdir(parents=True)
        fault.write_text("75")  # its shipper is tried again and again
    daemon.cluster.launch(spec)
    running(daemon)
    wait_for(lambda: [learner.program_ended for learner in learners(daemon)] == [False, True, True])

    os.kill(daemon.pid, signal.SIGTERM)

    wait_for(lambda: daemon.cluster.observe().gangs["job-x-1"].stopping)
    assert [learner.reason for learner in learners(daemon)] == ["platform_stopped", None, None]
    for fault in faults:
        fault.unlink()
    daemon.terminate()  # a second signal: at once
    daemon.start()
    assert [(learner.reason, learner.exit_code) for learner in ended(daemon)] == [
        ("platform_stopped", 143),
        ("exited", 0),
        ("exited", 1),
    ]


def test_sigterm_kills_what_does_not_obey_within_its_grace(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(replace(launch("job-x-1", "stubborn"), grace_s=1))
    running(daemon)
    assert daemon.terminate() == 0
    assert daemon.processes() == []


@pytest.mark.fault
def test_a_shipper_that_cannot_deliver_before_the_daemon_goes_delivers_to_the_next(
    daemon: NodeDaemon,
) -> None:
    daemon.cluster.launch(replace(launch("job-x-1", "runs"), grace_s=1))
    running(daemon)
    lives = daemon.learner("job-x-1") / "state" / "shipper_lives"
    wait_for(lambda: lives.exists() and lives.read_text().split())
    os.kill(pids(daemon, "shipper")[0], signal.SIGSTOP)
    daemon.terminate()
    assert daemon.processes() == []
    daemon.start()
    (learner,) = ended(daemon)
    assert (learner.reason, learner.exit_code) == ("platform_stopped", 143)
    assert len(lives.read_text().split()) == 2


@pytest.mark.fault
@pytest.mark.parametrize(
    ("behavior", "end"),
    [("exits:0", ("exited", 0)), ("exits:1", ("exited", 1)), ("waits", ("platform_stopped", 143))],
)
def test_a_daemon_that_goes_waits_no_grace_of_a_program_that_does_not_run(
    daemon: NodeDaemon, behavior: str, end: tuple[str, int]
) -> None:
    """What it left is being sent, or its inputs are being fetched, which may both take hours: the next daemon's shipper
    continues with it."""
    spec = replace(launch("job-x-1", behavior), grace_s=3600)
    state = daemon.learner("job-x-1") / "state"
    fault = state.parent / "fault"
    fault.parent.mkdir(parents=True)
    fault.write_text("75")  # its shipper is tried again and again
    daemon.cluster.launch(spec)
    wait_for(lambda: (state / "pid").exists())
    if behavior != "waits":
        wait_for(lambda: learners(daemon)[0].program_ended)

    assert daemon.terminate() == 0

    assert daemon.processes() == []
    fault.unlink()
    daemon.start()
    (learner,) = ended(daemon)
    assert (learner.reason, learner.exit_code) == end


def test_after_a_restart_of_the_machine_a_gang_is_lost_with_its_node(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    daemon.kill()
    # The shipper first: one that outlives its launcher may note that it was lost.
    for pid in pids(daemon, "shipper") + pids(daemon, "launcher"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    file = daemon.data / "nodes" / ".gangs" / "job-x-1.json"
    boot = json.loads(file.read_text())["boot"]
    file.write_text(file.read_text().replace(boot, "the machine's run before"))
    daemon.start()
    (learner,) = ended(daemon)
    assert (learner.phase, learner.reason, learner.exit_code) == (LearnerPhase.FAILED, "node_lost", None)


def test_a_second_sigterm_leaves_the_learners_to_the_next_daemon(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(replace(launch("job-x-1", "stubborn"), grace_s=600))
    running(daemon)
    os.kill(daemon.pid, signal.SIGTERM)
    wait_for(lambda: daemon.cluster.observe().gangs["job-x-1"].stopping)
    daemon.terminate()
    assert pids(daemon, "launcher")
    daemon.start()
    assert daemon.cluster.observe().gangs["job-x-1"].stopping
    daemon.cluster.stop("job-x-1", grace_s=0)
    assert ended(daemon)[0].exit_code == 137


def test_removing_forty_gangs_at_once_leaves_nothing(daemon: NodeDaemon) -> None:
    with running_daemon(nodes="node-a:cpu:40") as many:
        for index in range(40):
            many.cluster.launch(launch(f"job-x{index}-1", "runs"))
        for index in range(40):
            many.cluster.remove(f"job-x{index}-1")
        assert many.cluster.observe().gangs == {}
        wait_for(lambda: many.processes() == [many.pid])
        wait_for(lambda: not list((many.data / "nodes").glob("*/*")), what=lambda: "all files are deleted")


def test_the_daemons_files_hold_no_secret_of_a_program(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(replace(launch("job-x-1", "runs"), secrets={"WANDB_API_KEY": "own-value"}))
    running(daemon)
    (launcher,), (shipper,) = pids(daemon, "launcher"), pids(daemon, "shipper")
    assert b"WANDB_API_KEY=own-value" in Path(f"/proc/{launcher}/environ").read_bytes().split(b"\0")
    assert b"own-value" not in Path(f"/proc/{shipper}/environ").read_bytes()
    daemon.kill()
    daemon.start()
    assert learners(daemon)[0].phase is LearnerPhase.RUNNING, "a running program has its secrets already"
    kept = [*(daemon.data / "nodes" / ".gangs").iterdir(), daemon.log]
    assert [path for path in kept if b"own-value" in path.read_bytes()] == []


def test_a_gang_whose_secrets_were_lost_before_its_start_ends_to_be_launched_again(
    daemon: NodeDaemon,
) -> None:
    daemon.cluster.launch(replace(launch("job-x-1", "runs"), secrets={"WANDB_API_KEY": "own-value"}))
    running(daemon)
    processes = pids(daemon, "launcher") + pids(daemon, "shipper")
    daemon.kill()
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    file = daemon.data / "nodes" / ".gangs" / "job-x-1.json"
    saved = json.loads(file.read_text())
    saved["learners"][0] |= {"launcher": None, "shipper": None, "phase": "PREPARING", "started": False}
    file.write_text(json.dumps(saved))
    daemon.start()
    (learner,) = ended(daemon)
    assert learner.reason == "not_prepared"
    assert "stores no secrets" in learner.message
