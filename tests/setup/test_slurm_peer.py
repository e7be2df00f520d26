"""What the benchmark against Slurm writes and reads, without Slurm."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bench.peers import slurm_cluster


def test_configuration_is_private_and_on_loopback() -> None:
    text = slurm_cluster.configuration(
        Path("/private"), host="here", user="me", cpus=40, jobs=12_000, ports=(7001, 7002)
    )
    found = dict(line.split("=", 1) for line in text.splitlines())
    assert found["SelectType"] == "select/cons_tres"
    assert found["SlurmctldHost"] == "here(127.0.0.1)"
    assert (found["SlurmctldPort"], found["SlurmdPort"]) == ("7001", "7002")
    assert set(found["CommunicationParameters"].split(",")) == {"NoInAddrAny", "NoCtldInAddrAny"}
    assert found["NodeName"] == "node-a NodeHostname=here NodeAddr=127.0.0.1 CPUs=40 State=UNKNOWN"
    assert found["MaxJobCount"] == found["MaxArraySize"] == "12000"
    values = [value.removeprefix("socket=") for value in found.values()]
    paths = [value for value in values if value.startswith("/")]
    assert len(paths) == 7
    assert all(path.startswith("/private/") for path in paths)


def test_states_count_the_tasks_of_arrays() -> None:
    listing = """\
JobId=2 ArrayJobId=2 ArrayTaskId=7-9%40 JobName=true.sh JobState=PENDING Reason=Resources
JobId=3 ArrayJobId=2 ArrayTaskId=3 JobName=true.sh JobState=RUNNING Reason=None
JobId=1 JobName=line.sh UserId=root(0) JobState=COMPLETED Reason=None ExitCode=0:0
No jobs in the system
"""
    assert slurm_cluster.states(listing) == Counter(PENDING=3, RUNNING=1, COMPLETED=1)
    assert slurm_cluster.tasks("3,7-999%40") == 994


def test_missing_packages_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(slurm_cluster, "PATH", str(tmp_path))
    monkeypatch.setattr(slurm_cluster.os, "geteuid", lambda: 1000)
    with pytest.raises(slurm_cluster.MissingPackages, match="apt-get install munge slurm-wlm"):
        slurm_cluster.install()
