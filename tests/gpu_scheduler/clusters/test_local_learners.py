"""What a learner gets on the local cluster, and what becomes of it when one of its processes dies."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.clusters.base import ClusterBusy, LaunchRefused, LearnerPhase
from gpu_scheduler.clusters.local import processes
from gpu_scheduler.clusters.local.context import DaemonContext
from gpu_scheduler.clusters.local.isolation import home_of_the_user
from gpu_scheduler.clusters.local.shipper import QUICK_DEATHS, ShipperProcess
from gpu_scheduler.clusters.local.store import GangRecord, LearnerRecord
from tests.gpu_scheduler.clusters.harness import launch
from tests.gpu_scheduler.clusters.learners import ended, learners, pids, running, seen
from tests.gpu_scheduler.clusters.node_daemon import FAKE_AGENT, NodeDaemon, running_daemon, wait_for


def test_a_learner_finds_ffdls_names_and_every_frameworks_rendezvous(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs", "runs", nodes=("node-a", "node-b"), slots=2))
    running(daemon)
    one, two = seen(daemon)["env"], seen(daemon, rank=1, node="node-b")["env"]
    root = daemon.learner("job-x-1")
    assert {name: one[name] for name in ("JOB_STATE_DIR", "CHECKPOINT_DIR", "MODEL_DIR", "DATA_DIR")} == {
        "JOB_STATE_DIR": f"{root}/state",
        "CHECKPOINT_DIR": f"{root}/state/checkpoints",
        "MODEL_DIR": f"{root}/code",
        "DATA_DIR": f"{root}/data",
    }
    assert (one["RESULT_DIR"], one["LOG_DIR"]) == (f"{root}/results", f"{root}/logs")
    assert [(env["LEARNER_ID"], env["LUTHIER_RANK"], env["RANK"]) for env in (one, two)] == [
        ("1", "0", "0"),
        ("2", "1", "1"),
    ]
    assert (one["NUM_LEARNERS"], one["GPU_COUNT"], one["LUTHIER_ATTEMPT"]) == ("2", "0", "1")
    assert one["TRAINING_COMMAND"] == "exec behave"
    for name in ("MASTER_ADDR", "MASTER_PORT", "JAX_COORDINATOR_ADDRESS", "WORLD_SIZE"):
        assert one[name] == two[name]
    assert one["JAX_COORDINATOR_ADDRESS"] == f"127.0.0.1:{one['MASTER_PORT']}"
    tf_one, tf_two = json.loads(one["TF_CONFIG"]), json.loads(two["TF_CONFIG"])
    assert tf_one["cluster"] == tf_two["cluster"]
    assert len(set(tf_one["cluster"]["worker"])) == 2
    assert (tf_one["task"]["index"], tf_two["task"]["index"]) == (0, 1)
    assert Path(one["MPI_HOSTFILE"]).read_text() == "127.0.0.1\n127.0.0.1\n"
    assert one["PATH"].startswith(str(Path(one["VIRTUAL_ENV"]) / "bin"))
    assert seen(daemon)["cwd"] == f"{root}/code"


def test_the_program_gets_no_secret_and_nothing_of_the_platforms_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://somewhere")
    monkeypatch.setenv("SECRET_KEY", "hush")
    others = {
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "LUTHIER_SECRETS_KEYS",
        "SENTRY_DSN",
        "VENDOR_TOKEN",
    }
    for name in others:
        monkeypatch.setenv(name, "hush")
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/own.pem")
    with running_daemon() as daemon:
        daemon.cluster.launch(launch("job-x-1", "runs"))
        running(daemon)
        wait_for((daemon.learner("job-x-1") / "state" / "shipper_env.json").exists)
        env = seen(daemon)["env"]
        assert not {"DATABASE_URL", "SECRET_KEY", "LUTHIER_SECRET", "LUTHIER_INGEST_URL"} & env.keys()
        assert "secret-0" not in json.dumps(env)
        shipper = json.loads((daemon.learner("job-x-1") / "state" / "shipper_env.json").read_text())
        assert shipper["LUTHIER_SECRET"] == "secret-0"
        assert shipper["SSL_CERT_FILE"] == "/etc/own.pem"
        assert not {"DATABASE_URL", "SECRET_KEY", *others} & shipper.keys()
        assert shipper["LUTHIER_DATA_ROOT"] == str(daemon.data / "datasets")
        assert "secret-0" not in str(daemon.commands())


SANDBOXED = """\
import json, runpy, sys
if sys.argv[1] == "sandbox":
    print(json.dumps({{"landlock": 7, "namespaces": True, "without": []}}))
else:
    runpy.run_path({agent!r}, run_name="__main__")
"""
"""An agent that says that its sandbox works, and does without."""


def sandboxed(folder: Path) -> Path:
    """The package of such an agent."""
    agent = folder / "agent"
    agent.mkdir()
    (agent / "__main__.py").write_text(SANDBOXED.format(agent=str(FAKE_AGENT / "__main__.py")))
    return agent


def test_learners_are_kept_from_what_is_private_and_have_so_many_processes(tmp_path: Path) -> None:
    given = [str(tmp_path / "blobs"), str(tmp_path / "blobs" / "a"), str(tmp_path / "keys")]
    options = [word for path in given for word in ("--private", path)]
    with running_daemon(agent=sandboxed(tmp_path), options=options) as daemon:
        daemon.cluster.launch(launch("job-x-1", "runs"))
        running(daemon)
        asked = json.loads(seen(daemon)["env"]["LUTHIER_SANDBOX"])
        private, most = asked["private"], asked["processes"]
        assert most == processes.MOST >= 4096
        home = map(str, home_of_the_user([]))
        assert set(private) == {str(daemon.data), str(daemon.address.key), given[0], given[2], *home}


def test_in_the_sandbox_a_learner_has_the_files_of_its_own_gpus_and_their_identities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nfor n in 0 1; do echo $n, NVIDIA H200, GPU-$n$n, 00000000:0$n:00.0; done\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    given = []
    for agent in (sandboxed(tmp_path), FAKE_AGENT):
        with running_daemon(agent=agent, nodes="node-a:h200:2,node-b:cpu:1") as daemon:
            daemon.cluster.launch(replace(launch("job-x-1", "runs", "runs"), slot_type="h200"))
            running(daemon)
            given += [seen(daemon, rank=rank)["env"]["CUDA_VISIBLE_DEVICES"] for rank in (0, 1)]
    assert given == ["GPU-00", "GPU-11", "0", "1"]


def test_a_command_that_is_a_list_reaches_the_launcher_word_by_word(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(replace(launch("job-x-1", "runs"), command=["python", "a b.py", "$X"]))
    running(daemon)
    assert seen(daemon)["argv"][1:] == ["launcher", "--", "python", "a b.py", "$X"]


def test_no_two_learners_ever_get_one_gpu() -> None:
    with running_daemon(nodes="node-a:h200:4,node-b:cpu:1") as daemon:
        gpu = [replace(launch(f"job-{name}-1", "runs", "runs"), slot_type="h200") for name in "xy"]
        for gang in gpu:
            daemon.cluster.launch(gang)
        with pytest.raises(ClusterBusy, match="node-a has 0 of 4 slots free"):
            daemon.cluster.launch(replace(gpu[0], name="job-z-1"))
        running(daemon, "job-x-1")
        running(daemon, "job-y-1")
        devices = [
            seen(daemon, name, rank)["env"]["CUDA_VISIBLE_DEVICES"]
            for name in ("job-x-1", "job-y-1")
            for rank in (0, 1)
        ]
        assert sorted(devices) == ["0", "1", "2", "3"]
        assert seen(daemon)["env"]["GPU_COUNT"] == "1"


def test_a_cpu_learner_sees_no_gpu(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    assert seen(daemon)["env"]["CUDA_VISIBLE_DEVICES"] == ""
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "TF_CONFIG", "MPI_HOSTFILE"} & seen(daemon)["env"].keys()
    assert not (daemon.learner("job-x-1") / "state" / "hostfile").exists()


def test_an_image_is_refused_with_the_way_out(daemon: NodeDaemon) -> None:
    with pytest.raises(LaunchRefused, match="name a framework instead") as refused:
        daemon.cluster.launch(replace(launch("job-x-1", "runs"), runtime=None, image="registry/img:1"))
    assert refused.value.code == "image_error"


def test_a_killed_launcher_takes_all_that_it_started_with_it(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "dies"))
    (learner,) = ended(daemon)
    assert (learner.phase, learner.exit_code, learner.reason) == (LearnerPhase.FAILED, None, "launcher_lost")
    assert daemon.processes() == [daemon.pid]


def test_a_killed_shipper_is_started_again_and_the_program_does_not_notice(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    launchers = pids(daemon, "launcher")
    lives = daemon.learner("job-x-1") / "state" / "shipper_lives"
    for life in (1, 2):
        wait_for(lambda life=life: lives.exists() and len(lives.read_text().split()) == life)
        for pid in pids(daemon, "shipper"):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(lives.read_text().split()) == 3)
    assert pids(daemon, "launcher") == launchers
    daemon.cluster.stop("job-x-1", grace_s=5)
    assert ended(daemon)[0].exit_code == 143


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [(78, "deploy_failed", "what went wrong"), (76, "fenced", "no longer accepts")],
)
def test_a_shipper_that_cannot_go_on_ends_the_learner_with_its_words(
    daemon: NodeDaemon, code: int, reason: str, words: str
) -> None:
    folder = daemon.learner("job-x-1")
    folder.mkdir(parents=True)
    (folder / "fault").write_text(str(code))
    daemon.cluster.launch(launch("job-x-1", "exits:0" if code == 76 else "runs"))
    (learner,) = ended(daemon)
    assert (learner.phase, learner.reason) == (LearnerPhase.FAILED, reason)
    assert words in learner.message


def test_a_program_above_its_memory_is_ended_with_the_numbers(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(replace(launch("job-x-1", "eats:300"), memory_mib=128))
    (learner,) = ended(daemon)
    assert (learner.exit_code, learner.reason) == (137, "out_of_memory")
    assert learner.numbers["peak_memory_mib"] > 128
    assert learner.message.endswith("limit 128 MiB. Killed.")


def test_the_exit_code_is_known_while_the_shipper_still_ships(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    wait_for(lambda: pids(daemon, "shipper"))
    (shipper,) = pids(daemon, "shipper")
    os.kill(shipper, signal.SIGSTOP)
    daemon.cluster.stop("job-x-1", grace_s=5)
    wait_for(lambda: learners(daemon)[0].exit_code is not None)
    assert learners(daemon)[0].phase is LearnerPhase.RUNNING
    os.kill(shipper, signal.SIGCONT)
    assert ended(daemon)[0].exit_code == 143


def test_a_shipper_that_keeps_dying_is_given_up_unless_it_gets_on(tmp_path: Path) -> None:
    context = DaemonContext(tmp_path, tmp_path, "python3", "boot", None)
    record = LearnerRecord(0, "node-a", "uid", "mark", [0])
    gang = GangRecord(launch("job-x-1", "runs"), [record], "boot")
    folders = context.folders("job-x-1", record)
    acked = folders.state / "log" / "acked"
    acked.parent.mkdir(parents=True)
    shipper_process = ShipperProcess(context, gang, record, folders)
    for n in range(3 * QUICK_DEATHS):
        acked.write_text(str(n))
        assert shipper_process._assess(1, float(n)) is None

    failures = [shipper_process._assess(1, 100.0) for _ in range(QUICK_DEATHS)]

    assert failures[:-2] == [None] * (QUICK_DEATHS - 2)
    assert [found.reason for found in failures if found] == ["shipper_failed"] * 2


def test_a_node_whose_folder_is_on_a_disk_of_its_own_is_cleared_too(daemon: NodeDaemon) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as disk:
        if Path(disk).stat().st_dev == daemon.data.stat().st_dev:
            pytest.skip("there is no second file system here")
        (daemon.data / "nodes" / "node-a").symlink_to(disk)
        daemon.cluster.launch(launch("job-x-1", "runs"))
        running(daemon)

        daemon.cluster.remove("job-x-1")

        assert daemon.cluster.observe().gangs == {}
        wait_for(lambda: not list(Path(disk).glob("*/*")))
