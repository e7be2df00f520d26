"""The tool itself: several clusters beside each other, on loopback only, and nothing left of any of them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tools.kube import binaries, processes
from tools.kube.cluster import Cluster, ClusterError

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
COMPONENTS = {"kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd", "kwok"}
STARTER = """
import sys, time
from pathlib import Path
from tools.kube import binaries
from tools.kube.cluster import Cluster

Cluster(Path(sys.argv[1]), binaries.build(), tied=True).start()
print("started", flush=True)
sys.stdin.read()
"""


def names(running: list[psutil.Process]) -> set[str]:
    return {Path(process.cmdline()[0]).name for process in running}


def test_the_cluster_listens_on_loopback_only(cluster: Cluster) -> None:
    running = processes.running(cluster.layout.folder)
    assert names(running) == COMPONENTS
    listening = [each for one in running for each in one.net_connections("inet") if each.status == "LISTEN"]
    assert len(listening) == 5
    assert {each.laddr.ip for each in listening} == {"127.0.0.1"}


def test_its_keys_are_private(cluster: Cluster) -> None:
    assert cluster.layout.folder.stat().st_mode & 0o777 == 0o700


def test_a_second_start_in_the_folder_changes_nothing(cluster: Cluster) -> None:
    before = processes.running(cluster.layout.folder)
    with pytest.raises(ClusterError, match="A cluster is running in"):
        Cluster(cluster.layout.folder, cluster.binaries, tied=True).start()
    assert processes.running(cluster.layout.folder) == before


def test_a_folder_with_other_files_is_left_alone(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    other = Cluster(tmp_path, cluster.binaries, tied=True)
    with pytest.raises(ClusterError, match="holds other files"):
        other.start()
    other.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_program_that_ends_stops_the_start_with_its_log(cluster: Cluster, tmp_path: Path) -> None:
    """Here etcd, which cannot make its data folder."""
    folder = tmp_path / "broken"
    broken = Cluster(folder, cluster.binaries, tied=True)
    write = broken._write_files

    def spoil(ports: object) -> None:
        write(ports)  # type: ignore[arg-type]
        (folder / "etcd").touch()

    broken._write_files = spoil  # type: ignore[method-assign]
    with pytest.raises(
        ClusterError, match=r"etcd ended with exit code 1:\n(.|\n)*cannot access data directory"
    ):
        broken.start()
    assert not folder.exists()
    assert processes.running(folder) == []


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_start_that_is_ended_leaves_nothing(sent: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "ended"
    command = [sys.executable, "-m", "tools.kube", "--folder", str(folder), "up"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as start:
        while not processes.running(folder):
            assert start.poll() is None
        start.send_signal(sent)
        assert start.wait(60) == 128 + sent
    assert processes.running(folder) == []
    assert not folder.exists()


def test_what_a_killed_start_left_is_stopped_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "tools.kube", "--folder", str(folder), "up"]
    with subprocess.Popen(command, cwd=ROOT) as start:
        while not processes.running(folder):
            assert start.poll() is None
        start.kill()
    subprocess.run([*command[:-1], "down"], cwd=ROOT, check=True, timeout=60)
    assert processes.running(folder) == []
    assert not folder.exists()


def test_its_programs_die_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "tied"
    command = [sys.executable, "-c", STARTER, str(folder)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "started\n"
        running = processes.running(folder)
        assert names(running) == COMPONENTS
        starter.kill()
    _, alive = psutil.wait_procs(running, timeout=30)
    assert alive == []


def test_an_existing_cluster_serves_the_tests_that_need_its_api_only(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Named by a variable. Those that need power over the cluster are skipped and say so."""
    kubectl = [cluster.binaries["kubectl"], "--kubeconfig", str(cluster.kubeconfig)]
    flat = subprocess.run([*kubectl, "config", "view", "--raw", "--flatten"], capture_output=True, check=True)
    (tmp_path / "kubeconfig").write_bytes(flat.stdout)  # in YAML, with the keys in it
    tests = ("test_admission.py::test_the_admission_would_refuse_a_pod_that_is_less_confined",
             "test_gpu_pods.py::test_a_gpu_pod_is_bound_by_the_scheduler_and_runs",
             "test_real_nodes.py::test_a_restricted_pod_runs_confined")  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "cluster", "-p", "no:cacheprovider"]
    command += [f"tests/cluster/{each}" for each in tests]
    env = os.environ | {"LUTHIER_TEST_KUBECONFIG": str(tmp_path / "kubeconfig")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=110)
    assert "1 passed, 2 skipped" in done.stdout, done.stdout + done.stderr
    assert "needs a cluster of the test's own: LUTHIER_TEST_KUBECONFIG=" in done.stdout


def test_a_module_that_differs_from_its_sum_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(binaries.MODULES / "kwok", tmp_path / "kwok")
    sums = tmp_path / "kwok" / "go.sum"
    sums.write_text(re.sub(r"(?m)^(sigs.k8s.io/kwok v\S+ h1:)....", r"\1AAAA", sums.read_text()))
    monkeypatch.setattr(binaries, "MODULES", tmp_path)
    root = binaries.cache_root()
    go = binaries.Go(binaries.install_go(root), root)
    with pytest.raises(binaries.BuildFailed, match="checksum mismatch"):
        go.build(binaries.Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"), tmp_path / "program")
    assert not (tmp_path / "program").exists()
