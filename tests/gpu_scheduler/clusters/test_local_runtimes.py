"""Runtimes: made once, by one builder, whole or not at all."""

from __future__ import annotations

import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.clusters.base import LaunchRefused, LearnerPhase
from gpu_scheduler.clusters.local.runtimes import Preparing, RuntimeFailed, Runtimes, _Build
from tests.gpu_scheduler.clusters.harness import launch
from tests.gpu_scheduler.clusters.node_daemon import NodeDaemon, wait_for

NOTHING = "# nothing but Python\n"
IMPOSSIBLE = "no-such-package-anywhere==1.0 --hash=sha256:" + "0" * 64 + "\n"


@pytest.fixture
def runtimes(tmp_path: Path) -> Runtimes:
    folder = tmp_path / "requirements"
    folder.mkdir()
    (folder / "plain.txt").write_text(NOTHING)
    (folder / "broken.txt").write_text(IMPOSSIBLE)
    return Runtimes(tmp_path / "data", folder)


def await_runtime(runtimes: Runtimes, name: str) -> Path:
    give_up = time.monotonic() + 60
    while isinstance(found := runtimes.get(name), Preparing):
        assert time.monotonic() < give_up, found.text
        time.sleep(0.02)
    return found


def test_a_runtime_is_made_on_first_use_and_its_python_runs(runtimes: Runtimes) -> None:
    first = runtimes.get("plain")
    assert first == Preparing("Preparing runtime plain")
    folder = await_runtime(runtimes, "plain")
    done = subprocess.run(
        [folder / "bin" / "python", "-c", "import sys; print(sys.prefix)"], capture_output=True
    )
    assert Path(done.stdout.decode().strip()) == folder
    assert runtimes.get("plain") == folder


def test_a_changed_requirements_file_is_another_runtime(runtimes: Runtimes, tmp_path: Path) -> None:
    before = runtimes.folder("plain")
    (tmp_path / "requirements" / "plain.txt").write_text(NOTHING + "# more\n")
    assert runtimes.folder("plain") != before


def test_a_broken_runtime_is_made_again(runtimes: Runtimes) -> None:
    folder = await_runtime(runtimes, "plain")
    (folder / "bin" / "python").unlink()
    assert isinstance(runtimes.get("plain"), Preparing)
    assert (await_runtime(runtimes, "plain") / "bin" / "python").exists()


def test_two_builders_at_once_make_one_runtime(runtimes: Runtimes, tmp_path: Path) -> None:
    builds = [
        _Build("plain", runtimes.folder("plain"), tmp_path / "requirements" / "plain.txt") for _ in range(2)
    ]
    threads = [threading.Thread(target=build.run) for build in builds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [build.error for build in builds] == ["", ""]
    assert [path.name for path in (tmp_path / "data" / "runtimes").iterdir() if path.name[0] != "."] == [
        runtimes.folder("plain").name
    ]


def test_a_failed_build_says_what_the_builder_said_last_and_may_be_tried_again(runtimes: Runtimes) -> None:
    with pytest.raises(RuntimeFailed, match=r"(?s)The runtime broken could not be prepared.*no-such-package"):
        await_runtime(runtimes, "broken")
    assert isinstance(runtimes.get("broken"), Preparing)
    with pytest.raises(RuntimeFailed):
        await_runtime(runtimes, "broken")


def test_progress_follows_what_the_builder_fetches(tmp_path: Path) -> None:
    build = _Build("pytorch", tmp_path, tmp_path)
    heard = [build.progress()]
    for line in (
        "Downloading torch (1.5GiB)",
        "Downloading numpy (16.1MiB)",
        " Downloaded torch",
        "Prepared 2 packages in 1.24s",
    ):
        build._hear(line)
        heard.append(build.progress())
    assert heard == [
        "Preparing runtime pytorch",
        "Preparing runtime pytorch, 0.0 of 1.6 GB",
        "Preparing runtime pytorch, 0.0 of 1.6 GB",
        "Preparing runtime pytorch, 1.6 of 1.6 GB",
        "Preparing runtime pytorch, installing",
    ]


def test_an_unknown_runtime_is_refused_with_those_there_are(daemon: NodeDaemon) -> None:
    with pytest.raises(LaunchRefused, match="There is no runtime caffe here; there are: fake"):
        daemon.cluster.launch(replace(launch("job-x-1", "runs"), runtime="caffe"))


def test_launch_does_not_wait_for_the_runtime_and_the_gang_starts_with_it(daemon: NodeDaemon) -> None:
    (daemon.requirements / "plain.txt").write_text(NOTHING)
    began = time.monotonic()
    daemon.cluster.launch(replace(launch("job-x-1", "exits:0", "exits:0"), runtime="plain"))
    shown = daemon.cluster.observe()["job-x-1"]
    assert time.monotonic() - began < 1
    assert {learner.phase for learner in shown.learners} == {LearnerPhase.PREPARING}
    wait_for(lambda: daemon.cluster.observe()["job-x-1"].message == "Preparing runtime plain")
    wait_for(lambda: daemon.cluster.observe()["job-x-1"].gone_or_ended, within_s=60)
    assert [learner.exit_code for learner in daemon.cluster.observe()["job-x-1"].learners] == [0, 0]


def test_a_gang_whose_runtime_cannot_be_made_fails_whole_with_the_builders_words(daemon: NodeDaemon) -> None:
    (daemon.requirements / "broken.txt").write_text(IMPOSSIBLE)
    daemon.cluster.launch(replace(launch("job-x-1", "runs", "runs"), runtime="broken"))
    wait_for(lambda: daemon.cluster.observe()["job-x-1"].gone_or_ended, within_s=60)
    for learner in daemon.cluster.observe()["job-x-1"].learners:
        assert (learner.phase, learner.reason) == (LearnerPhase.FAILED, "deploy_failed")
        assert "no-such-package-anywhere" in learner.message
    assert daemon.processes() == [daemon.pid]


def test_a_gang_stopped_while_its_runtime_is_made_never_starts(daemon: NodeDaemon) -> None:
    (daemon.requirements / "plain.txt").write_text(NOTHING)
    daemon.cluster.launch(replace(launch("job-x-1", "runs"), runtime="plain"))
    daemon.cluster.stop("job-x-1", grace_s=5)
    wait_for(lambda: daemon.cluster.observe()["job-x-1"].gone_or_ended)
    (learner,) = daemon.cluster.observe()["job-x-1"].learners
    assert (learner.exit_code, learner.reason) == (143, "stopped")
    assert not (daemon.learner("job-x-1") / "state" / "seen.json").exists()


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_builder_ends_with_its_daemon(daemon: NodeDaemon, end: str) -> None:
    (daemon.requirements / "slow.txt").write_text(IMPOSSIBLE)
    daemon.cluster.launch(replace(launch("job-x-1", "runs"), runtime="slow"))
    getattr(daemon, end)()
    wait_for(lambda: not daemon.processes(), within_s=10, what=daemon.processes)
