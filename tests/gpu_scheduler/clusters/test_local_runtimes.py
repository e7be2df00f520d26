"""Runtimes: made once, by one builder, whole or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.clusters.base import LaunchRefused, LearnerPhase
from gpu_scheduler.clusters.local import builder, runtime_failure
from gpu_scheduler.clusters.local.builder import READY, Preparing, exclusive_lock, is_complete
from gpu_scheduler.clusters.local.packages import Environments
from gpu_scheduler.clusters.local.runtime_failure import RuntimeFailed
from gpu_scheduler.clusters.local.runtimes import RuntimeBuild, Runtimes
from tests.gpu_scheduler.clusters.harness import all_ended, launch
from tests.gpu_scheduler.clusters.node_daemon import TIMEOUT_S, NodeDaemon, wait_for

NOTHING = "# nothing but Python\n"
IMPOSSIBLE = "no-such-package-anywhere==1.0 --hash=sha256:" + "0" * 64 + "\n"
UNPINNED = "no-such-package-anywhere==1.0\n"  # refused without a look at any index


@pytest.fixture
def runtimes(tmp_path: Path) -> Runtimes:
    folder = tmp_path / "requirements"
    folder.mkdir()
    (folder / "plain.txt").write_text(NOTHING)
    (folder / "broken.txt").write_text(IMPOSSIBLE)
    return Runtimes(tmp_path / "data", folder)


def await_runtime(runtimes: Runtimes, name: str) -> Path:
    deadline = time.monotonic() + 2 * TIMEOUT_S
    while isinstance(found := runtimes.get(name), Preparing):
        assert time.monotonic() < deadline, found.text
        time.sleep(0.02)
    return found


def test_a_runtime_is_made_on_first_use_and_its_python_runs(runtimes: Runtimes) -> None:
    first = runtimes.get("plain")
    assert first == Preparing("Preparing runtime plain: its packages are installed once per machine")
    folder = await_runtime(runtimes, "plain")
    done = subprocess.run(
        [folder / "bin" / "python", "-c", "import sys; print(sys.prefix)"], capture_output=True
    )
    assert Path(done.stdout.decode().strip()) == folder
    assert runtimes.get("plain") == folder


def test_a_runtime_that_exists_is_not_reported_as_being_installed(runtimes: Runtimes, tmp_path: Path) -> None:
    """A daemon that was started again tries each once; a job's history must not say that packages are fetched."""
    await_runtime(runtimes, "plain")
    again = Runtimes(tmp_path / "data", tmp_path / "requirements")
    assert again.get("plain") == Preparing("")
    await_runtime(again, "plain")


def test_a_changed_requirements_file_is_another_runtime(runtimes: Runtimes, tmp_path: Path) -> None:
    before = runtimes.folder("plain")
    (tmp_path / "requirements" / "plain.txt").write_text(NOTHING + "# more\n")
    assert runtimes.folder("plain") != before


def test_looking_whether_a_runtime_works_runs_no_code_of_its_packages(
    runtimes: Runtimes, tmp_path: Path
) -> None:
    folder = await_runtime(runtimes, "plain")
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "own.pth").write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    assert builder.works(folder)
    assert not (tmp_path / "ran").exists()


def test_a_runtimes_python_is_tried_without_the_platforms_secrets(
    runtimes: Runtimes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = await_runtime(runtimes, "plain")
    python = folder / "bin" / "python"
    python.unlink()
    python.write_text(f"#!/bin/sh\nenv > {tmp_path / 'env'}\n")
    python.chmod(0o755)
    monkeypatch.setenv("SECRET_KEY", "hush")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    assert builder.works(folder)
    assert "PATH=" in (tmp_path / "env").read_text()
    assert "hush" not in (tmp_path / "env").read_text()


def test_a_broken_runtime_is_made_again(runtimes: Runtimes) -> None:
    folder = await_runtime(runtimes, "plain")
    (folder / "bin" / "python").unlink()
    assert isinstance(runtimes.get("plain"), Preparing)
    assert (await_runtime(runtimes, "plain") / "bin" / "python").exists()


def test_two_builders_at_once_make_one_runtime(runtimes: Runtimes, tmp_path: Path) -> None:
    builds = [
        RuntimeBuild("plain", runtimes.folder("plain"), tmp_path / "requirements" / "plain.txt")
        for _ in range(2)
    ]
    threads = [threading.Thread(target=build.run) for build in builds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [build.failed for build in builds] == [None, None]
    assert [path.name for path in (tmp_path / "data" / "runtimes").iterdir() if path.name[0] != "."] == [
        runtimes.folder("plain").name
    ]


def test_a_failed_build_says_so_leaves_nothing_and_may_be_tried_again(
    runtimes: Runtimes, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeFailed, match=r"^The runtime broken [^\n]+\.$") as failed:
        await_runtime(runtimes, "broken")
    assert "no-such-package" in failed.value.output
    assert [path for path in (tmp_path / "data" / "runtimes").iterdir() if path.is_dir()] == []
    assert isinstance(runtimes.get("broken"), Preparing)
    with pytest.raises(RuntimeFailed):
        await_runtime(runtimes, "broken")


def test_a_builder_that_ran_out_of_space_gives_all_of_it_back(
    runtimes: Runtimes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = tmp_path / "uv"
    greedy.write_text(
        '#!/bin/sh\n[ "$1" = venv ] || { echo "error: No space left on device (os error 28)"; exit 2; }\n'
        'for last; do :; done; mkdir -p "$last" && head -c 100000 /dev/zero > "$last/wheel"\n'
    )
    greedy.chmod(0o755)
    monkeypatch.setattr(builder, "find_uv", lambda: [str(greedy)])
    with pytest.raises(RuntimeFailed) as failed:
        await_runtime(runtimes, "plain")
    assert failed.value.temporary
    assert failed.value.message("node local") == (
        "No space is left on node local while preparing the runtime plain."
    )
    assert [path for path in (tmp_path / "data" / "runtimes").iterdir() if path.is_dir()] == []


def test_what_a_killed_builder_left_is_no_runtime_and_goes_with_the_next_start(
    runtimes: Runtimes, tmp_path: Path
) -> None:
    environments = Environments(tmp_path / "data", runtimes)
    home = tmp_path / "data" / "runtimes"
    folder = runtimes.folder("plain")
    left, other = (home / f".{name}.building-123" for name in (folder.name, "gone-0123456789ab"))
    for half in (left, other):
        (half / "bin").mkdir(parents=True)
        (half / READY).touch()
    assert list(home.glob("[!.]*")) == [], "nor does `plain-*` in a shell find it"
    assert isinstance(runtimes.get("plain"), Preparing), "half of it is not taken for the runtime"
    await_runtime(runtimes, "plain")
    assert not left.exists()
    held = home / ".busy-0123456789ab.building-123"
    held.mkdir()
    with exclusive_lock(home / "busy-0123456789ab"):
        environments.sweep().join()
        assert held.exists(), "another builder works there"
    assert not other.exists()
    environments.sweep().join()
    assert not held.exists()
    assert is_complete(folder)


def test_what_a_killed_daemon_left_and_locks_of_what_is_gone_go_with_the_sweep(
    runtimes: Runtimes, tmp_path: Path
) -> None:
    environments = Environments(tmp_path / "data", runtimes)
    bases, tops = tmp_path / "data" / "runtimes", tmp_path / "data" / "environments"
    left = [bases / ".resolving-old", tops / ".resolving-old", tops / ".installing-old"]
    young, there = tops / ".installing-young", tops / "0123"
    for folder in (*left, young, there):
        folder.mkdir(parents=True)
    for folder in left:
        (folder / "requirements.txt").touch()
        os.utime(folder, (0, 0))
    locks = {name: tops / f".{name}.lock" for name in ("gone", "busy", "0123")}
    for lock in (*locks.values(), tops / ".0123.lock.txt"):
        lock.touch()
    with exclusive_lock(tops / "busy"):
        environments.sweep().join()
        assert sorted(path.name for path in (*bases.iterdir(), *tops.iterdir())) == [
            ".0123.lock", ".0123.lock.txt", ".busy.lock", ".installing-young", "0123",
        ]  # fmt: skip
    environments.sweep().join()
    assert not locks["busy"].exists()


def test_a_builder_that_waited_for_a_lock_which_was_removed_has_the_new_one(tmp_path: Path) -> None:
    folder, path, waits, ended = (
        tmp_path / "0123",
        tmp_path / ".0123.lock",
        threading.Event(),
        threading.Event(),
    )

    def work() -> None:
        with exclusive_lock(folder):
            waits.set()
            ended.wait(60)

    thread = threading.Thread(target=work)
    with exclusive_lock(folder):
        removed = path.stat()
        thread.start()
        wait_for(lambda: opened(removed) > 1)
        path.unlink()
    assert waits.wait(60)
    with exclusive_lock(folder, wait=False) as is_ours:
        assert not is_ours
    ended.set()
    thread.join()


def opened(file: os.stat_result) -> int:
    """How often this process has that file open."""
    count = 0
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            count += os.path.samestat(handle.stat(), file)
    return count


@pytest.mark.parametrize(
    ("said", "message", "temporary"),
    [
        (
            "error: Request failed after 3 retries\n  cause: dns error",
            "package index could not be reached",
            True,
        ),
        (
            "error: Failed to download `idna==3.7`\n  cause: Hash mismatch for `idna==3.7`",
            "idna==3.7 is not",
            False,
        ),
        (
            "error: No solution found when resolving dependencies",
            "cannot be built from its requirements",
            False,
        ),
        ("  cause: Disk quota exceeded (os error 122)", "No space is left on node a", True),
        ("Killed", "could not be prepared on node a", True),
        ("error: operation timed out", "package index could not be reached", True),
        (
            "error: Failed to bytecode-compile\n  Caused by: Bytecode timed out (600s)",
            "could not be prepared",
            True,
        ),
        ("  Caused by: Python startup timed out (60s)", "could not be prepared on node a", True),
    ],
)
def test_only_what_can_never_be_made_is_final(said: str, message: str, temporary: bool) -> None:
    failed = runtime_failure.of_builder("x", said.splitlines())
    assert message in failed.message("node a")
    assert (failed.temporary, failed.output) == (temporary, said)
    full = runtime_failure.of_machine("x", OSError(28, "No space left on device"))
    assert (full.message("node a"), full.temporary) == (
        "No space is left on node a while preparing the runtime x.",
        True,
    )


def test_progress_follows_what_the_builder_fetches(tmp_path: Path) -> None:
    build = RuntimeBuild("pytorch", tmp_path, tmp_path)
    messages = [build.progress()]
    for line in (
        "Downloading torch (1.5GiB)",
        "Downloading numpy (16.1MiB)",
        " Downloaded torch",
        "Prepared 2 packages in 1.24s",
    ):
        build._parse_line(line)
        messages.append(build.progress())
    assert messages == [
        f"Preparing runtime pytorch: its packages are installed once per machine{so_far}"
        for so_far in (
            "",
            ", 0.0 of 1.6 GB fetched",
            ", 0.0 of 1.6 GB fetched",
            ", 1.6 of 1.6 GB fetched",
            ", all fetched",
        )
    ]


def test_an_unknown_runtime_is_refused_with_those_there_are(daemon: NodeDaemon) -> None:
    with pytest.raises(LaunchRefused, match="This machine has no runtime caffe; it has: fake"):
        daemon.cluster.launch(replace(launch("job-x-1", "runs"), runtime="caffe"))


def test_launch_does_not_wait_for_the_runtime_and_the_gang_starts_with_it(daemon: NodeDaemon) -> None:
    with no_builds(daemon, "plain"):
        daemon.cluster.launch(replace(launch("job-x-1", "exits:0", "exits:0"), runtime="plain"))
        shown = daemon.cluster.observe().gangs["job-x-1"]
        assert {learner.phase for learner in shown.learners} == {LearnerPhase.PREPARING}
        wait_for(
            lambda: daemon.cluster.observe().gangs["job-x-1"].message.startswith("Preparing runtime plain:")
        )
    wait_for(lambda: all_ended(daemon.cluster.observe().gangs["job-x-1"]))
    assert [learner.exit_code for learner in daemon.cluster.observe().gangs["job-x-1"].learners] == [0, 0]


@pytest.mark.parametrize("reason", ["deploy_failed", "not_prepared"])
def test_a_gang_whose_runtime_is_not_made_ends_whole_with_one_sentence(
    daemon: NodeDaemon, reason: str
) -> None:
    (daemon.requirements / "broken.txt").write_text(UNPINNED)
    if reason == "not_prepared":  # a file is in the place where its folder for runtimes is to be made
        shutil.rmtree(daemon.data / "runtimes")
        (daemon.data / "runtimes").write_text("")
    daemon.cluster.launch(replace(launch("job-x-1", "runs", "runs"), runtime="broken"))
    wait_for(lambda: all_ended(daemon.cluster.observe().gangs["job-x-1"]))
    for learner in daemon.cluster.observe().gangs["job-x-1"].learners:
        assert (learner.phase, learner.reason) == (LearnerPhase.FAILED, reason)
        assert learner.message.startswith("The runtime broken ")
        assert "\n" not in learner.message
    assert (
        "no-such-package-anywhere" if reason == "deploy_failed" else "File exists"
    ) in daemon.log.read_text()
    assert daemon.processes() == [daemon.pid]


def test_a_gang_stopped_while_its_runtime_is_made_never_starts(daemon: NodeDaemon) -> None:
    with no_builds(daemon, "plain"):
        daemon.cluster.launch(replace(launch("job-x-1", "runs"), runtime="plain"))
        daemon.cluster.stop("job-x-1", grace_s=5)
        wait_for(lambda: all_ended(daemon.cluster.observe().gangs["job-x-1"]))
    (learner,) = daemon.cluster.observe().gangs["job-x-1"].learners
    assert (learner.exit_code, learner.reason) == (143, "stopped")
    assert not (daemon.learner("job-x-1") / "state" / "seen.json").exists()


@contextmanager
def no_builds(daemon: NodeDaemon, name: str) -> Iterator[None]:
    """Write the requirements of this runtime, and hold its one builder's place: the daemon's waits."""
    (daemon.requirements / f"{name}.txt").write_text(NOTHING)
    with exclusive_lock(Runtimes(daemon.data, daemon.requirements).folder(name)):
        yield


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_builder_ends_with_its_daemon(daemon: NodeDaemon, end: str) -> None:
    (daemon.requirements / "slow.txt").write_text(IMPOSSIBLE)
    daemon.cluster.launch(replace(launch("job-x-1", "runs"), runtime="slow"))
    getattr(daemon, end)()
    wait_for(lambda: not daemon.processes(), what=daemon.processes)
