"""What a learner gets on the local cluster, and what becomes of it when something dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.clusters.base import ENDED, ClusterBusy, LaunchRefused, LearnerPhase, LearnerReport
from gpu_scheduler.clusters.local.gangs import Gang, Gangs
from gpu_scheduler.clusters.local.house import House
from gpu_scheduler.clusters.local.nodes import LocalNode
from gpu_scheduler.clusters.local.runtimes import Runtimes
from gpu_scheduler.clusters.local.shipper import QUICK_DEATHS, Shipper
from gpu_scheduler.clusters.local.store import GangRecord, LearnerRecord
from tests.gpu_scheduler.clusters.harness import launch
from tests.gpu_scheduler.clusters.node_daemon import NodeDaemon, running_daemon, wait_for


def learners(daemon: NodeDaemon, gang: str = "job-x-1") -> tuple[LearnerReport, ...]:
    return daemon.cluster.observe()[gang].learners


def running(daemon: NodeDaemon, gang: str = "job-x-1") -> None:
    """Await that every launcher has come to its program."""
    where = {learner.rank: learner.node for learner in learners(daemon, gang)}
    wait_for(
        lambda: all(
            (daemon.learner(gang, rank, node) / "state" / "phase").exists() for rank, node in where.items()
        )
    )


def ended(daemon: NodeDaemon, gang: str = "job-x-1") -> tuple[LearnerReport, ...]:
    wait_for(
        lambda: all(learner.phase in ENDED for learner in learners(daemon, gang)),
        what=lambda: (learners(daemon, gang), daemon.log.read_text()),
    )
    return learners(daemon, gang)


def seen(daemon: NodeDaemon, gang: str = "job-x-1", rank: int = 0, node: str = "node-a") -> dict:
    """What the launcher found in its environment."""
    return json.loads((daemon.learner(gang, rank, node) / "state" / "seen.json").read_text())


def pids(daemon: NodeDaemon, word: str) -> list[int]:
    """Living processes of this daemon's learners with this word on their command line."""
    return [pid for pid in daemon.processes() if word in Path(f"/proc/{pid}/cmdline").read_text().split("\0")]


def marked(pid: int, variable: str) -> bool:
    return variable.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


# What a learner gets


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
    with running_daemon() as daemon:
        daemon.cluster.launch(launch("job-x-1", "runs"))
        running(daemon)
        wait_for((daemon.learner("job-x-1") / "state" / "shipper_env.json").exists)
        env = seen(daemon)["env"]
        assert not {"DATABASE_URL", "SECRET_KEY", "LUTHIER_SECRET", "LUTHIER_INGEST_URL"} & env.keys()
        assert "secret-0" not in json.dumps(env)
        shipper = json.loads((daemon.learner("job-x-1") / "state" / "shipper_env.json").read_text())
        assert shipper["LUTHIER_SECRET"] == "secret-0"
        assert shipper["LUTHIER_DATA_ROOT"] == str(daemon.data / "datasets")
        assert not {"DATABASE_URL", "SECRET_KEY"} & shipper.keys()
        for pid in daemon.processes():
            assert "secret-0" not in Path(f"/proc/{pid}/cmdline").read_text()


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
    assert "TF_CONFIG" not in seen(daemon)["env"]


def test_an_image_is_refused_with_the_way_out(daemon: NodeDaemon) -> None:
    with pytest.raises(LaunchRefused, match="use the Kubernetes cluster") as refused:
        daemon.cluster.launch(replace(launch("job-x-1", "runs"), runtime=None, image="registry/img:1"))
    assert refused.value.code == "image_error"


# What dies


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


def test_a_program_that_ends_while_no_daemon_looks_keeps_its_exit_code(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    (launcher,) = pids(daemon, "launcher")
    daemon.kill()
    os.kill(launcher, signal.SIGTERM)
    wait_for(lambda: not pids(daemon, "shipper"))
    daemon.start()
    (learner,) = ended(daemon)
    assert (learner.phase, learner.exit_code, learner.reason) == (LearnerPhase.FAILED, 143, "")


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
    ("code", "reason", "words"), [(78, "deploy_failed", "what went wrong"), (76, "fenced", "no longer knows")]
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
    assert learner.evidence["peak_memory_mib"] > 128
    assert learner.message.endswith("its limit is 128 MiB.")


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


# The daemon's own end


def test_sigterm_stops_learners_with_grace_and_they_end_as_lost_with_the_node(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs", "exits:0"))
    running(daemon)
    wait_for(lambda: learners(daemon)[1].phase is LearnerPhase.SUCCEEDED)
    assert daemon.terminate() == 0
    assert daemon.processes() == []
    daemon.start()
    stopped, finished = learners(daemon)
    assert (stopped.phase, stopped.reason, stopped.exit_code) == (LearnerPhase.FAILED, "node_lost", 143)
    assert finished.phase is LearnerPhase.SUCCEEDED


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
    wait_for(lambda: pids(daemon, "shipper"))
    os.kill(pids(daemon, "shipper")[0], signal.SIGSTOP)
    daemon.terminate()
    assert daemon.processes() == []
    daemon.start()
    (learner,) = ended(daemon)
    assert (learner.reason, learner.exit_code) == ("node_lost", 143)
    assert len((daemon.learner("job-x-1") / "state" / "shipper_lives").read_text().split()) == 2


def test_after_a_restart_of_the_machine_a_gang_is_lost_with_its_node(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    daemon.kill()
    for pid in pids(daemon, "launcher") + pids(daemon, "shipper"):
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
    wait_for(lambda: daemon.cluster.observe()["job-x-1"].stopping)
    daemon.terminate(within_s=10)
    assert pids(daemon, "launcher")
    daemon.start()
    assert daemon.cluster.observe()["job-x-1"].stopping
    daemon.cluster.stop("job-x-1", grace_s=0)
    assert ended(daemon)[0].exit_code == 137


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"[1]\n",
        b"\xff\xfe\n",
        b'{"op": "launch"}\n',
        b'{"op": "launch", "gang": {"name": "../x"}}\n',
        b'{"op": "remove", "name": "../../etc"}\n',
        b'{"op": "stop", "name": "x", "grace_s": "soon"}\n',
        b"no end of line",
    ],
)
def test_nonsense_on_the_socket_is_answered_and_changes_nothing(daemon: NodeDaemon, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(daemon.socket))
        link.sendall(line)
        link.shutdown(socket.SHUT_WR)
        answer = link.makefile().read()
    if line.endswith(b"\n"):
        assert json.loads(answer)["error"] == "bad_request"
    assert daemon.cluster.observe() == {}


def test_an_unreadable_gang_file_is_set_aside_and_the_others_live(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    running(daemon)
    daemon.kill()
    (daemon.data / "nodes" / ".gangs" / "job-y-1.json").write_text("{")
    daemon.start()
    assert list(daemon.cluster.observe()) == ["job-x-1"]
    assert (daemon.data / "nodes" / ".gangs" / "job-y-1.unreadable").exists()


def test_removing_forty_gangs_at_once_leaves_nothing(daemon: NodeDaemon) -> None:
    with running_daemon(nodes="node-a:cpu:40") as many:
        for index in range(40):
            many.cluster.launch(launch(f"job-x{index}-1", "runs"))
        began = time.monotonic()
        for index in range(40):
            many.cluster.remove(f"job-x{index}-1")
        assert time.monotonic() - began < 60
        assert many.cluster.observe() == {}
        wait_for(lambda: many.processes() == [many.pid])


# What a program may put where its own files belong


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


def test_a_launcher_that_ended_without_a_word_is_spoken_for_whatever_lies_there(daemon: NodeDaemon) -> None:
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


def test_a_fault_met_in_one_gang_is_told_of_it_and_no_trouble_of_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    house = House(tmp_path, tmp_path, "python3", "boot", None)
    gangs = Gangs(house, [LocalNode("node-a", "cpu", 2)], Runtimes(tmp_path, tmp_path))
    looked = []

    def move_on(gang: Gang, now: float) -> bool:
        looked.append(gang.name)
        if gang.name == "job-x-1":
            raise RecursionError("too deep")
        return False

    monkeypatch.setattr(gangs, "_move_on", move_on)
    monkeypatch.setattr(gangs._runtimes, "has", lambda name: True)
    for name in ("job-x-1", "job-y-1"):
        gangs.launch(launch(name, "runs"))

    gangs.look()

    assert looked == ["job-x-1", "job-y-1"]
    first, second = gangs.observe(None)
    assert "RecursionError('too deep')" in first.message
    assert second.message == ""


def test_a_shipper_that_keeps_dying_is_given_up_unless_it_gets_on(tmp_path: Path) -> None:
    house = House(tmp_path, tmp_path, "python3", "boot", None)
    record = LearnerRecord(0, "node-a", "uid", "mark", [0])
    gang = GangRecord(launch("job-x-1", "runs"), [record], "boot")
    folders = house.folders("job-x-1", record)
    acked = folders.state / "log" / "acked"
    acked.parent.mkdir(parents=True)
    keeper = Shipper(house, gang, record, folders)
    for n in range(3 * QUICK_DEATHS):
        acked.write_text(str(n))
        assert keeper._judge(1, float(n)) is None

    given_up = [keeper._judge(1, 100.0) for _ in range(QUICK_DEATHS)]

    assert given_up[:-2] == [None] * (QUICK_DEATHS - 2)
    assert [found.reason for found in given_up if found] == ["shipper_failed"] * 2


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


def test_a_node_whose_folder_is_on_a_disk_of_its_own_is_cleared_too(daemon: NodeDaemon) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as disk:
        if Path(disk).stat().st_dev == daemon.data.stat().st_dev:
            pytest.skip("there is no second file system here")
        (daemon.data / "nodes" / "node-a").symlink_to(disk)
        daemon.cluster.launch(launch("job-x-1", "runs"))
        running(daemon)

        daemon.cluster.remove("job-x-1")

        assert daemon.cluster.observe() == {}
        wait_for(lambda: not list(Path(disk).iterdir()))
