"""Shippers and launchers that are forked: children of the daemon like any other, found again, and with nothing of other
jobs.

The agent is the real one. No server answers, so its shippers keep trying until they are killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.clusters.base import LearnerPhase
from tests.gpu_scheduler.clusters.harness import launch
from tests.gpu_scheduler.clusters.learners import learners
from tests.gpu_scheduler.clusters.node_daemon import PROJECT, NodeDaemon, running_daemon, wait_for


@pytest.fixture
def daemon() -> Iterator[NodeDaemon]:
    with running_daemon(agent=PROJECT / "learner_agent") as daemon:
        yield daemon


def recorded(daemon: NodeDaemon, gang: str, half: str) -> int:
    """The process id of a launcher or shipper as the daemon recorded it; 0 while there is none."""
    with suppress(FileNotFoundError):
        record = json.loads((daemon.data / "nodes" / ".gangs" / f"{gang}.json").read_text())
        return int((record["learners"][0][half] or {"pid": 0})["pid"])
    return 0


def shipper(daemon: NodeDaemon, gang: str) -> int:
    return recorded(daemon, gang, "shipper")


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def is_forked(pid: int) -> bool:
    with suppress(OSError):
        return b"\0fork\0" in cmdline(pid) and lives(pid)
    return False


def servers(daemon: NodeDaemon, half: str = "shipper") -> list[int]:
    """Fork servers of shippers or launchers among the daemon's children: they have no job's id."""
    children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
    return [
        pid
        for pid in map(int, children)
        if is_forked(pid) and b"TRAINING_ID" not in environ(pid) and half.encode() in cmdline(pid)
    ]


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def environ(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def has_imported(server: int) -> bool:
    """uvloop is the last that it imports."""
    return "uvloop" in Path(f"/proc/{server}/maps").read_text()


def forked(daemon: NodeDaemon, gang: str) -> int:
    """Kill the gang's shipper until the next one is forked; its pid."""
    wait_for(lambda: lives(shipper(daemon, gang)))
    while not is_forked(pid := shipper(daemon, gang)):
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda dead=pid: shipper(daemon, gang) != dead and lives(shipper(daemon, gang)))
        wait_for(lambda: any(map(has_imported, servers(daemon))))
    return pid


def handles(pid: int) -> dict[str, str]:
    """What its open descriptors lead to, by number; those of a living shipper come and go."""
    found = {}
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found[each.name] = str(each.readlink())
    return found


def test_a_forked_shipper_is_like_any_other_and_shares_nothing(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    first = forked(daemon, "job-x-1")
    daemon.cluster.launch(launch("job-y-1", "runs"))
    second = forked(daemon, "job-y-1")
    for pid, job, other in ((first, "x", "y"), (second, "y", "x")):
        root = str(daemon.learner(f"job-{job}-1"))
        log = f"{root}/shipper.log"
        wait_for(lambda pid=pid, log=log: handles(pid).get("2") == log)  # from then on it is on its own
        status = Path(f"/proc/{pid}/status").read_text()
        assert f"\nPPid:\t{daemon.pid}\n" in status, "it is waited for by the daemon"
        assert os.getsid(pid) == os.getpgid(pid) == pid
        assert f"TRAINING_ID={job}".encode() in environ(pid).split(b"\0"), "it is found by its id"
        assert b"secret-0" not in environ(pid)
        assert str(Path(f"/proc/{pid}/cwd").readlink()) == root
        assert [handles(pid)[place] for place in "012"] == ["/dev/null", log, log]
        assert not [
            handle for handle in handles(pid).values() if f"job-{other}-1" in handle or "memfd" in handle
        ]
    (server,) = servers(daemon)
    assert not [handle for handle in handles(server).values() if "job-" in handle or "memfd" in handle]
    maps = [line.split() for line in Path(f"/proc/{server}/maps").read_text().splitlines()]
    with open(f"/proc/{server}/mem", "rb") as memory:
        for words in (words for words in maps if words[1].startswith("rw") and "[v" not in words[-1]):
            start, end = (int(word, 16) for word in words[0].split("-"))
            memory.seek(start)
            assert b"secret-0" not in memory.read(end - start), "the server reads no request"


def test_without_its_server_or_its_daemon_a_forked_shipper_goes_on(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(launch("job-x-1", "runs"))
    pid = forked(daemon, "job-x-1")
    (server,) = servers(daemon)
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{server}").exists())  # it stays no zombie
    daemon.cluster.launch(launch("job-y-1", "runs"))
    wait_for(lambda: lives(shipper(daemon, "job-y-1")))
    assert not is_forked(shipper(daemon, "job-y-1")), "another one starts the plain way meanwhile"
    wait_for(lambda: servers(daemon))
    (server,) = servers(daemon)
    daemon.kill()
    wait_for(lambda: not lives(server))
    assert lives(pid)
    daemon.start()
    assert shipper(daemon, "job-x-1") == pid
    assert [learner.phase for learner in learners(daemon)] == [LearnerPhase.RUNNING]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: shipper(daemon, "job-x-1") != pid and lives(shipper(daemon, "job-x-1")))
    daemon.cluster.remove("job-x-1")
    wait_for(lambda: not daemon.learner("job-x-1").exists())


def test_a_shipper_of_other_code_is_not_forked_from_an_older_server(tmp_path: Path) -> None:
    agent = tmp_path / "learner_agent"
    shutil.copytree(PROJECT / "learner_agent", agent, ignore=shutil.ignore_patterns("__pycache__"))
    with running_daemon(agent=agent) as daemon:
        daemon.cluster.launch(launch("job-x-1", "runs"))
        pid = forked(daemon, "job-x-1")
        (server,) = servers(daemon)
        with open(agent / "wire.py", "a") as code:
            code.write("# an upgrade\n")
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: shipper(daemon, "job-x-1") != pid and lives(shipper(daemon, "job-x-1")))
        assert not is_forked(shipper(daemon, "job-x-1"))
        assert not lives(server)
        wait_for(lambda: servers(daemon))


def with_forked_launcher(daemon: NodeDaemon, secrets: dict[str, str]) -> str:
    """Launch gangs until a launcher is forked; its gang's name."""
    for number in range(1, 100):
        gang = f"job-x{number}-1"
        daemon.cluster.launch(replace(launch(gang, "runs"), secrets=secrets))
        wait_for(lambda gang=gang: lives(recorded(daemon, gang, "launcher")))
        if is_forked(recorded(daemon, gang, "launcher")):
            return gang
        daemon.cluster.remove(gang)
    raise AssertionError("no launcher was forked")


def test_a_forked_launcher_is_like_any_other(daemon: NodeDaemon) -> None:
    gang = with_forked_launcher(daemon, {"WANDB_API_KEY": "secret-of-the-program"})
    pid, root = recorded(daemon, gang, "launcher"), str(daemon.learner(gang))
    log = f"{root}/launcher.log"
    wait_for(lambda: handles(pid).get("2") == log)  # from then on it is on its own
    status = Path(f"/proc/{pid}/status").read_text()
    assert f"\nPPid:\t{daemon.pid}\n" in status, "it is waited for by the daemon"
    assert os.getsid(pid) == os.getpgid(pid) == pid
    assert b"secret-of-the-program" not in environ(pid)
    assert f"TRAINING_ID={gang[4:-2]}".encode() in environ(pid).split(b"\0"), "it is found by its id"
    assert str(Path(f"/proc/{pid}/cwd").readlink()) == f"{root}/code"
    assert [handles(pid)[place] for place in "012"] == ["/dev/null", log, log]
    (server,) = servers(daemon, "launcher")
    assert not [handle for handle in handles(server).values() if "job-" in handle or "memfd" in handle]
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{server}").exists())  # it stays no zombie
    assert lives(pid)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not lives(pid) and recorded(daemon, gang, "launcher") == pid)
    wait_for(lambda: (daemon.learner(gang) / "state" / "exit").exists())
    ending = json.loads((daemon.learner(gang) / "state" / "exit").read_text())
    assert ending["lost"] or ending["code"] == 128 + signal.SIGKILL
