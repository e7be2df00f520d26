"""Memory cgroups, on a folder that looks like the kernel's."""

from __future__ import annotations

from pathlib import Path

from gpu_scheduler.clusters.local.memory_limits import Cgroups, machine_mib


def kernel(mount: Path, *, controllers: str) -> Path:
    """A version 2 hierarchy in which the daemon sits at /up/daemon; its siblings are /up/…"""
    (mount / "up" / "daemon").mkdir(parents=True)
    (mount / "up" / "cgroup.subtree_control").write_text(controllers)
    return mount


def test_the_machines_memory_is_reported_or_the_smallest_limit_of_a_group_around_us(tmp_path: Path) -> None:
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line)
    whole = int(total.split()[1]) // 1024
    mount = kernel(tmp_path, controllers="memory\n")
    assert machine_mib(mount, "/up/daemon") == machine_mib(tmp_path / "absent", "/") == whole
    (mount / "up" / "daemon" / "memory.max").write_text("max\n")
    (mount / "up" / "memory.max").write_text(f"{64 * 1024 * 1024}\n")
    (mount / "memory.max").write_text(f"{96 * 1024 * 1024}\n")
    assert machine_mib(mount, "/up/daemon") == 64
    assert machine_mib(mount, "/") == 96


def test_without_the_memory_controller_there_are_none(tmp_path: Path) -> None:
    assert Cgroups.find(kernel(tmp_path, controllers="cpu pids\n"), "/up/daemon") is None
    assert Cgroups.find(tmp_path / "absent", "/up/daemon") is None


def test_a_learner_is_confined_beside_the_daemon(tmp_path: Path) -> None:
    groups = Cgroups.find(kernel(tmp_path, controllers="cpu memory\n"), "/up/daemon")
    assert groups is not None
    assert groups.confine("abc", 4711, 512, 4096)
    folder = tmp_path / "up" / "luthier-abc"
    assert (folder / "memory.max").read_text() == str(512 * 1024 * 1024)
    assert (folder / "cgroup.procs").read_text() == "4711"
    assert (folder / "pids.max").read_text() == "4096"
    assert groups.confine("def", 4712, 0, 4096), (
        "of a job without a limit of memory the processes are limited"
    )
    assert (folder.parent / "luthier-def" / "memory.max").read_text() == "max"


def test_without_the_controller_of_processes_memory_is_limited(tmp_path: Path) -> None:
    groups = Cgroups.find(kernel(tmp_path, controllers="memory\n"), "/up/daemon")
    assert groups is not None
    (tmp_path / "up" / "luthier-abc" / "pids.max").mkdir(parents=True)  # cannot be written
    assert groups.confine("abc", 4711, 512, 4096)
    assert (tmp_path / "up" / "luthier-abc" / "cgroup.procs").read_text() == "4711"


def test_the_kernels_account_has_the_peak_and_whether_it_killed(tmp_path: Path) -> None:
    groups = Cgroups.find(kernel(tmp_path, controllers="memory\n"), "/up/daemon")
    assert groups is not None
    groups.confine("abc", 4711, 512, 4096)
    assert (groups.peak_mib("abc"), groups.killed("abc")) == (None, False)
    folder = tmp_path / "up" / "luthier-abc"
    (folder / "memory.peak").write_text(f"{513 * 1024 * 1024}\n")
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\n")
    assert (groups.peak_mib("abc"), groups.killed("abc")) == (513, True)
    assert not groups.killed("another")
