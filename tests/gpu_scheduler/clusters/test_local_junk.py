"""Junk on the socket, in the spool and in the daemon's files is rejected or reported, and harms no other job."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_scheduler.clusters.base import LearnerPhase
from gpu_scheduler.clusters.local.context import DaemonContext
from gpu_scheduler.clusters.local.gang import LocalGang
from gpu_scheduler.clusters.local.gangs import Gangs
from gpu_scheduler.clusters.local.nodes import LocalNode
from gpu_scheduler.clusters.local.packages import Environments
from gpu_scheduler.clusters.local.runtimes import Runtimes
from tests.gpu_scheduler.clusters.harness import launch
from tests.gpu_scheduler.clusters.learners import ended, learners, pids, running
from tests.gpu_scheduler.clusters.node_daemon import NodeDaemon, wait_for


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{KEY}\n",
        b"[1]\n",
        b"\xff\xfe\n",
        b'{KEY, "op": "launch"}\n',
        b'{KEY, "op": "launch", "gang": {"name": "../x"}}\n',
        b'{KEY, "op": "remove", "name": "../../etc"}\n',
        b'{KEY, "op": "stop", "name": "x", "grace_s": "soon"}\n',
        b"no end of line",
    ],
)
def test_nonsense_on_the_socket_is_answered_and_changes_nothing(daemon: NodeDaemon, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(daemon.socket))
        link.sendall(line.replace(b"KEY", b'"key": "%s"' % daemon.address.key.read_bytes()))
        link.shutdown(socket.SHUT_WR)
        answer = link.makefile().read()
    if line.endswith(b"\n"):
        assert json.loads(answer)["error"] == "bad_request"
    assert daemon.cluster.observe().gangs == {}


def test_an_unreadable_gang_file_is_set_aside_and_the_others_live(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    daemon.kill()
    (daemon.data / "nodes" / ".gangs" / "job-y-1.json").write_text("{")
    daemon.start()
    assert list(daemon.cluster.observe().gangs) == ["job-x-1"]
    assert (daemon.data / "nodes" / ".gangs" / "job-y-1.unreadable").exists()


def _deep(place: Path) -> None:
    place.write_text("[" * 200_000)


def _huge(place: Path) -> None:
    place.write_text('{"code": 0, "x": "' + "x" * 1_000_000 + '"}')


def _link(place: Path) -> None:
    place.symlink_to("/dev/zero")


@pytest.mark.parametrize("put", [_deep, _huge, _link, os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", ["exit", "refused"])
def test_junk_in_place_of_a_file_of_one_job_is_no_trouble_of_another(
    daemon: NodeDaemon, put: Callable[[Path], None], name: str
) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    place = daemon.learner("job-x-1") / "state" / name
    place.with_suffix(".put").mkdir()
    put(place.with_suffix(".put") / name)
    (place.with_suffix(".put") / name).rename(place)

    daemon.cluster.launch(launch("job-y-1", "exits:3"))

    (other,) = ended(daemon, "job-y-1")
    assert other.exit_code == 3
    (learner,) = learners(daemon)
    assert (learner.phase, learner.exit_code) == (LearnerPhase.RUNNING, None)
    daemon.cluster.remove("job-x-1")


def test_a_launcher_that_ended_without_a_word_gets_its_exit_written_whatever_is_there(
    daemon: NodeDaemon,
) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    state = daemon.learner("job-x-1") / "state"
    (launcher,) = pids(daemon, "launcher")
    os.kill(launcher, signal.SIGSTOP)
    state.rename(state.with_name("away"))
    state.write_text("no folder")
    os.kill(launcher, signal.SIGKILL)

    wait_for(lambda: state.is_dir() and (state / "exit").is_file())
    assert json.loads((state / "exit").read_text())["lost"] is True


def test_a_fault_met_in_one_gang_is_reported_of_it_and_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, children_spared: None
) -> None:
    context = DaemonContext(tmp_path, tmp_path, "python3", "boot", None)
    gangs = Gangs(
        context, [LocalNode("node-a", "cpu", 2)], Environments(tmp_path, Runtimes(tmp_path, tmp_path))
    )
    looked = []

    def advance_gang(gang: LocalGang, now: float) -> bool:
        looked.append(gang.name)
        if gang.name == "job-x-1":
            raise RecursionError("too deep")
        return False

    monkeypatch.setattr(gangs, "_advance_gang", advance_gang)
    monkeypatch.setattr(gangs._environments, "refusal", lambda spec: "")
    for name in ("job-x-1", "job-y-1"):
        gangs.launch(launch(name, "runs"))

    gangs.advance()

    assert looked == ["job-x-1", "job-y-1"]
    first, second = gangs.observe(None)
    assert "RecursionError('too deep')" in first.message
    assert second.message == ""


def test_an_exit_that_was_written_while_the_launcher_lives_is_not_its_word(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    state = daemon.learner("job-x-1") / "state"
    (state / "exit.put").write_text(json.dumps({"code": 0, "started": True, "finished": True}))
    (state / "exit.put").rename(state / "exit")
    wait_for(lambda: not pids(daemon, "shipper"))  # something changed, so the daemon looked
    time.sleep(0.6)

    (learner,) = learners(daemon)
    assert (learner.phase, learner.exit_code) == (LearnerPhase.RUNNING, None)

    daemon.cluster.stop("job-x-1", grace_s=5)
    (learner,) = ended(daemon)
    assert (learner.phase, learner.exit_code) == (LearnerPhase.FAILED, 143)
