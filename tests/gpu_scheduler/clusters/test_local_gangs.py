"""What the daemon's loop and its requests do to each other, without a daemon process."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.clusters.base import EndReason, LearnerPhase
from gpu_scheduler.clusters.local import processes
from gpu_scheduler.clusters.local.builder import READY
from gpu_scheduler.clusters.local.context import DaemonContext
from gpu_scheduler.clusters.local.gangs import Gangs
from gpu_scheduler.clusters.local.learner import LocalLearner
from gpu_scheduler.clusters.local.memory_limits import Cgroups
from gpu_scheduler.clusters.local.nodes import read_nodes
from gpu_scheduler.clusters.local.packages import Environments
from gpu_scheduler.clusters.local.runtimes import Runtimes
from gpu_scheduler.clusters.local.shipper import BACKOFF_MAX_S
from gpu_scheduler.clusters.local.store import boot_clock
from learner_agent.shipper.run import EXIT_WRONG_VERSION
from tests.gpu_scheduler.clusters.harness import all_ended, launch
from tests.gpu_scheduler.clusters.node_daemon import FAKE_AGENT, wait_for


@pytest.fixture
def gangs(tmp_path: Path, children_spared: None) -> Iterator[Gangs]:
    """The loop is the test's own: nothing moves but by ``look``."""
    requirements = tmp_path / "requirements"
    requirements.mkdir()
    (requirements / "fake.txt").write_text("")
    runtimes = Runtimes(tmp_path / "data", requirements)
    runtime = runtimes.folder("fake")
    (runtime / "bin").mkdir(parents=True)
    (runtime / "bin" / "python").symlink_to(sys.executable)
    (runtime / READY).touch()
    context = DaemonContext(tmp_path / "data", FAKE_AGENT, sys.executable, processes.boot_id(), None)
    gangs = Gangs(context, read_nodes("node-a:cpu:4"), Environments(tmp_path, runtimes))
    yield gangs
    for report in gangs.observe(None):
        gangs.remove(report.name, None)


def running(gangs: Gangs, *programs: str) -> list[LocalLearner]:
    """The learners of job-x-1, whose programs have begun."""
    gangs.launch(launch("job-x-1", *programs))
    learners = gangs._gangs["job-x-1"].learners

    def all_run() -> bool:
        gangs.advance()
        return all((learner.folders.state / "phase").exists() for learner in learners)

    wait_for(all_run)
    return learners


def test_each_learner_gets_a_control_group_that_limits_its_processes(gangs: Gangs, tmp_path: Path) -> None:
    """Also one whose memory has no limit. The groups are plain folders here."""
    groups = tmp_path / "groups"
    groups.mkdir()
    gangs._context = replace(gangs._context, cgroups=Cgroups(groups))
    gangs.launch(replace(launch("job-x-1", "runs"), memory_mib=0))
    learner = gangs._gangs["job-x-1"].learners[0]

    def has_started() -> bool:
        gangs.advance()
        return learner.record.phase is LearnerPhase.RUNNING

    wait_for(has_started)
    group = groups / f"luthier-{learner.record.mark}"
    assert learner.record.launcher is not None
    assert (group / "cgroup.procs").read_text() == str(learner.record.launcher.pid)
    assert (group / "pids.max").read_text() == str(processes.MOST)
    assert (group / "memory.max").read_text() == "max"


def test_a_gang_under_removal_is_not_started_by_the_loop(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As an earlier daemon left it: noted as about to start, with no process yet."""
    gangs.launch(launch("job-x-1", "runs"))
    learner = gangs._gangs["job-x-1"].learners[0]
    learner.record.started = True
    killed = type(learner).kill

    def kill_then_let_the_loop_look(learner):
        gone = killed(learner)
        for _ in range(50):
            gangs.advance()
            time.sleep(0.002)  # the runtime is looked at in a thread
        return gone

    monkeypatch.setattr(type(learner), "kill", kill_then_let_the_loop_look)
    gangs.remove("job-x-1", None)
    assert processes.find_marked(learner.record.mark, processes.boot_id()) is None
    assert not list((tmp_path / "data" / "nodes").glob("node-a/*"))


def test_a_disk_that_takes_no_file_stops_no_other_gang_and_is_caught_up_with(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    gangs.launch(launch("job-x-1", "exits:0"))
    gangs.launch(launch("job-y-1", "exits:0"))
    save = gangs._store.save

    def full_for_x(record) -> None:
        if record.launch.name == "job-x-1":
            raise OSError(28, "No space left on device")
        save(record)

    monkeypatch.setattr(gangs._store, "save", full_for_x)

    def y_is_through() -> bool:
        gangs.advance()
        return all_ended(gangs.observe(["job-y-1"])[0])

    wait_for(y_is_through)
    monkeypatch.setattr(gangs._store, "save", save)

    def x_is_through() -> bool:
        gangs.advance()
        return all_ended(gangs.observe(["job-x-1"])[0])

    wait_for(x_is_through)
    saved = {record.launch.name: record.learners[0].phase for record in gangs._store.load()}
    assert saved == {"job-x-1": LearnerPhase.SUCCEEDED, "job-y-1": LearnerPhase.SUCCEEDED}


@pytest.mark.parametrize("kind", ["link", "fifo", "read fifo", "folder", "nothing"])
def test_a_shipper_is_started_again_whatever_took_the_place_of_its_log(
    gangs: Gangs, tmp_path: Path, kind: str
) -> None:
    gangs.launch(launch("job-x-1", "runs"))
    learner = gangs._gangs["job-x-1"].learners[0]

    def shipper_runs() -> bool:
        gangs.advance()
        return learner._shipper.process is not None and learner._shipper.process.is_alive()

    wait_for(shipper_runs)
    first, log = learner._shipper.process, learner.folders.shipper_log
    assert first is not None
    if kind == "nothing":
        # At once: its processes still write into it.
        learner.folders.root.rename(tmp_path / "gone")
    else:
        log.unlink()
    reader = -1
    if kind == "link":
        log.symlink_to(tmp_path / "other")
    elif kind.endswith("fifo"):
        os.mkfifo(log)
        reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK) if kind == "read fifo" else -1
    elif kind == "folder":
        (log / "full").mkdir(parents=True)
    first.signal(signal.SIGKILL)
    wait_for(lambda: not first.is_alive())

    wait_for(shipper_runs)

    assert learner._shipper.process is not first
    assert log.is_file()
    assert not log.is_symlink()
    assert not (tmp_path / "other").exists()
    if reader >= 0:
        os.close(reader)


def test_a_server_of_another_version_never_ends_the_program(gangs: Gangs) -> None:
    """However long the server is newer, or older, than this daemon and its code."""
    gangs.launch(launch("job-x-1", "runs"))
    shipper = gangs._gangs["job-x-1"].learners[0]._shipper
    now = 0.0
    for _ in range(100):
        assert shipper._assess(EXIT_WRONG_VERSION, now) is None
        assert now < shipper._due <= now + BACKOFF_MAX_S
        now = shipper._due


def test_a_shipper_that_cannot_be_started_for_long_is_given_up(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    gangs.launch(launch("job-x-1", "runs"))
    learner = gangs._gangs["job-x-1"].learners[0]

    def shipper_runs() -> bool:
        gangs.advance()
        return learner._shipper.process is not None

    wait_for(shipper_runs)
    began = boot_clock()

    def no_memory(*_args: object, **_fields: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(processes, "start", no_memory)
    learner._shipper.process.signal(signal.SIGKILL)
    wait_for(lambda: not learner._shipper.process.is_alive())
    for later in (1, 2, 100, 590):
        learner.advance(began + later)
        assert not learner.record.kill_reason
    learner.advance(began + 700)
    assert (learner.record.kill_reason, learner.record.message) == (
        "shipper_failed",
        "The shipper cannot be started: [Errno 12] Cannot allocate memory",
    )


def test_a_stop_is_carried_out_although_no_learner_can_be_advanced(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    learners = running(gangs, "runs", "runs")
    looked = []

    def spoilt(learner, now: float) -> bool:
        looked.append(learner.record.rank)
        raise ValueError("junk in the spool")

    monkeypatch.setattr(type(learners[0]), "advance", spoilt)
    gangs.stop("job-x-1", 0)

    def all_dead() -> bool:
        gangs.advance()
        return not any(learner._launcher.is_alive() for learner in learners)

    wait_for(all_dead)
    assert set(looked) == {0, 1}
    assert "junk in the spool" in gangs.observe(["job-x-1"])[0].message


def test_a_learner_that_cannot_be_pressed_keeps_no_other_from_its_stop(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = running(gangs, "runs", "runs")

    def spoilt(now: float, *, kill_at: float) -> None:
        raise PermissionError("not ours to signal")

    monkeypatch.setattr(first, "enforce_stop", spoilt)
    gangs.stop("job-x-1", 0)

    def second_is_dead() -> bool:
        gangs.advance()
        return not second._launcher.is_alive()

    wait_for(second_is_dead)
    assert first._launcher.is_alive()
    assert "not ours to signal" in gangs.observe(["job-x-1"])[0].message


def no_room(runtime: Path, devices: list[str], now: float) -> None:
    """In place of a learner's start on a full disk."""
    raise OSError(28, "No space left on device")


def test_a_start_that_breaks_off_half_way_goes_on_and_what_runs_is_looked_at_meanwhile(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    gangs.launch(launch("job-x-1", "exits:0", "exits:0"))
    first, second = gangs._gangs["job-x-1"].learners

    start = second._start_launcher
    monkeypatch.setattr(second, "_start_launcher", no_room)

    def the_first_is_through() -> bool:
        gangs.advance()
        return first.ended

    wait_for(the_first_is_through)
    assert "No space left" in gangs.observe(["job-x-1"])[0].message
    assert second.record.phase is LearnerPhase.PREPARING
    monkeypatch.setattr(second, "_start_launcher", start)

    def all_are_through() -> bool:
        gangs.advance()
        return second.ended

    wait_for(all_are_through)
    assert [learner.record.phase for learner in (first, second)] == [LearnerPhase.SUCCEEDED] * 2


def test_a_start_that_broke_off_half_way_ends_when_it_is_stopped(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    gangs.launch(launch("job-x-1", "runs", "runs"))
    first, second = gangs._gangs["job-x-1"].learners

    monkeypatch.setattr(second, "_start_launcher", no_room)

    def the_first_runs() -> bool:
        gangs.advance()
        return (first.folders.state / "phase").exists()

    wait_for(the_first_runs)
    assert second.record.phase is LearnerPhase.PREPARING
    gangs.stop("job-x-1", 5)

    def both_are_through() -> bool:
        gangs.advance()
        return first.ended and second.ended

    wait_for(both_are_through)
    assert (second.record.reason, second.record.exit_code) == ("stopped", 143)
    assert not second._shipper.process.is_alive()
    assert not first._launcher.is_alive()


def test_what_a_program_says_of_its_end_is_text_that_every_store_takes(gangs: Gangs) -> None:
    gangs.launch(launch("job-x-1", "runs"))
    learner = gangs._gangs["job-x-1"].learners[0]
    learner.fail(EndReason.DEPLOY_FAILED, "half \udc80 a character\0 and NUL")

    (report,) = gangs.observe(None)[0].learners
    assert report.message == "half ? a character and NUL"


def test_a_launcher_that_cannot_start_gives_its_last_words(gangs: Gangs, tmp_path: Path) -> None:
    python = next((tmp_path / "data" / "runtimes").glob("fake-*")) / "bin" / "python"
    python.unlink()
    python.write_text('#!/bin/sh\n[ "$1" = -I ] && exit 0\necho "libgone.so: cannot open" >&2\nexit 127\n')
    python.chmod(0o755)
    gangs.launch(launch("job-x-1", "runs"))

    def over() -> bool:
        gangs.advance()
        return all_ended(gangs.observe(None)[0])

    wait_for(over)
    (learner,) = gangs.observe(None)[0].learners
    assert learner.reason == "deploy_failed"
    assert "libgone.so: cannot open" in learner.message


@pytest.mark.parametrize("adopts", [True, False])
def test_only_what_may_have_left_processes_behind_has_the_machine_searched(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch, adopts: bool
) -> None:
    """Who adopts no orphans cannot know."""
    monkeypatch.setattr(processes, "_adopts", adopts)
    monkeypatch.setattr(processes, "_listed_children", lambda: set(processes._children))
    searched = []
    search = processes.kill_tree
    monkeypatch.setattr(
        processes, "kill_tree", lambda *given, **how: searched.append(given[1]) or search(*given, **how)
    )
    gangs.launch(launch("job-x-1", "exits:0"))
    (learner,) = gangs._gangs["job-x-1"].learners

    def has_ended() -> bool:
        gangs.advance()
        return learner.ended

    wait_for(has_ended)
    gangs.remove("job-x-1", None)
    assert bool(searched) is not adopts


def test_children_that_cannot_be_listed_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may be built without the lists: then what is left behind is searched for."""
    monkeypatch.setattr(processes, "_adopts", True)
    monkeypatch.setattr(processes, "OWN_THREADS", tmp_path)
    thread = tmp_path / "7"
    thread.mkdir()
    assert processes.has_orphans()
    (thread / "children").write_text("")
    assert not processes.has_orphans()
    (thread / "children").write_text("1073741824 ")
    assert processes.has_orphans()
    monkeypatch.setattr(processes, "OWN_THREADS", tmp_path / "absent")
    assert processes.has_orphans()


def test_what_a_dead_launcher_left_behind_is_searched_for(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_adopts", True)
    (learner,) = running(gangs, "dies")
    monkeypatch.setattr(processes, "_listed_children", lambda: {*processes._children, 2**30})
    mark = learner.record.mark

    def has_none_left() -> bool:
        gangs.advance()
        return processes.find_marked(mark, processes.boot_id()) is None

    wait_for(has_none_left)
