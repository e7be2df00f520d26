"""LOCAL_NODES and the daemon's arguments."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_scheduler.clusters.base import DNS_LABEL_RULE
from gpu_scheduler.clusters.local import gpus
from gpu_scheduler.clusters.local.memory_limits import machine_mib
from gpu_scheduler.clusters.local.nodes import BadNodes, LocalNode, read_nodes, slug_of
from gpu_scheduler.clusters.local.protocol import node_from_json, node_to_json
from gpu_scheduler.model import Resources


def test_nodes_are_read_in_order_of_their_names() -> None:
    assert read_nodes("node-b:cpu:2, node-a:cpu:4") == (
        LocalNode("node-a", "cpu", 4),
        LocalNode("node-b", "cpu", 2),
    )


def test_gpus_of_several_nodes_are_counted_on() -> None:
    a, b, c = read_nodes("a:h200:2,b:cpu:8,c:h200:1")
    assert (a.devices, b.devices, c.devices) == (("0", "1"), (), ("2",))


def test_every_wrong_entry_is_named_with_its_remedy() -> None:
    with pytest.raises(BadNodes) as refused:
        read_nodes("node-a:cpu,Node:cpu:2,x:cpu:0,y:cpu:two,ok:cpu:1,ok:cpu:1")
    assert str(refused.value).split("\n") == [
        "LOCAL_NODES: 'node-a:cpu' is not name:type:slots; write node-a:cpu:4,node-b:cpu:4 or auto",
        f"LOCAL_NODES: 'Node:cpu:2': the name 'Node' {DNS_LABEL_RULE}",
        "LOCAL_NODES: 'x:cpu:0': '0' is not a number of slots from 1 to 4096",
        "LOCAL_NODES: 'y:cpu:two': 'two' is not a number of slots from 1 to 4096",
        "LOCAL_NODES: node 'ok' is named twice; give each node a name of its own",
    ]


@pytest.mark.parametrize(
    ("model", "slug"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-PCIE-16GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("???", "gpu"),
    ],
)
def test_a_gpu_type_is_a_slug_of_the_model(model: str, slug: str) -> None:
    assert slug_of(model) == slug


def test_auto_without_gpus_is_one_node_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "nvidia", tuple)
    assert read_nodes("auto") == (LocalNode("local", "cpu", len(os.sched_getaffinity(0))),)


def test_auto_with_gpus_has_a_node_per_model_and_the_cores_beside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '0, NVIDIA H200\\n1, NVIDIA T4\\n2, NVIDIA H200\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    cpu, h200, t4 = read_nodes("auto")
    assert (cpu.name, cpu.slot_type) == ("local-cpu", "cpu")
    assert (h200.slot_type, h200.slots, h200.devices) == ("h200", 2, ("0", "2"))
    assert (t4.slot_type, t4.slots, t4.devices) == ("t4", 1, ("1",))
    assert [node.cpus for node in (cpu, h200, t4)] == [None, cpu.slots, cpu.slots]


def test_a_node_offers_the_cpus_and_memory_that_are_given_and_no_made_up_ones() -> None:
    given, plain = read_nodes("gpu-a:a100:4:cpus=32:memory=64Gi,gpu-b:a100:4")
    machine = 1000
    known, unknown = given.on_machine(machine), plain.on_machine(machine)
    assert (known.allocatable, known.most_memory_mib) == (Resources(4, 32, 65_536), 65_536)
    assert (unknown.allocatable, unknown.most_memory_mib) == (Resources(4, None, None), machine)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("a:cpu:4:cpus=8", "the slots of a node of type cpu are its CPUs"),
        ("a:a100:4:cpus=many", "'many' is not a number of CPUs"),
        ("a:a100:4:memory=64", "'64' is not an amount of memory; write it as 512Mi or 64Gi"),
        ("a:a100:4:gib=64", "'gib=64' is none of cpus=NUMBER, memory=AMOUNT, rack=NAME and block=NAME"),
        ("a:a100:4:rack=R 1", f"the rack 'R 1' {DNS_LABEL_RULE}"),
        ("a:a100:4:block=", f"the block '' {DNS_LABEL_RULE}"),
    ],
)
def test_an_option_of_a_node_that_cannot_be_read_is_named(entry: str, said: str) -> None:
    with pytest.raises(BadNodes, match=re.escape(said)):
        read_nodes(entry)


def test_a_node_is_in_the_rack_and_the_block_that_are_given() -> None:
    given, plain = read_nodes("a:a100:4:rack=r1:block=b1:cpus=8,b:a100:4")
    known, unknown = given.on_machine(1000), plain.on_machine(1000)
    assert (known.rack, known.block, known.allocatable.cpus) == ("r1", "b1", 8)
    assert (unknown.rack, unknown.block) == ("", "")


def test_a_node_reaches_the_workers_as_the_daemon_has_it() -> None:
    for node in read_nodes("a:a100:4:cpus=32:memory=64Gi,b:a100:4,c:cpu:2:memory=1Gi:rack=r1:block=b1"):
        shown = node.on_machine(1000)
        assert node_from_json(node_to_json(shown)) == shown


def test_a_process_of_another_version_can_read_a_node() -> None:
    plain, given = (node.on_machine(1000) for node in read_nodes("a:a100:4,b:a100:4:rack=r1"))
    assert not {"rack", "block"} & node_to_json(plain).keys(), "the version before knows neither"
    assert node_from_json({**node_to_json(given), "a_later_field": 1}) == given


def run_daemon(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "key").write_text("the-key-of-a-node-daemon-under-test")
    base = ["--data", str(tmp_path / "data"), "--socket", str(tmp_path / "s"), "--key", str(tmp_path / "key")]
    command = [sys.executable, "-m", "gpu_scheduler.clusters.local", *base, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_wrong_arguments_stop_the_start_all_at_once(tmp_path: Path) -> None:
    ended = run_daemon(
        tmp_path, "--nodes", "a:b,c:cpu:0", "--agent", str(tmp_path), "--socket", "/tmp/" + "x" * 120,
        "--key", str(tmp_path / "missing"),
    )  # fmt: skip
    assert ended.returncode == 78
    lines = ended.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "LOCAL_NODES",
        "LOCAL_NODES",
        "--socket",
        "--key",
        "--agent",
    ]
    assert not (tmp_path / "data").exists()


def test_a_second_daemon_on_the_folder_says_so(daemon) -> None:
    ended = run_daemon(daemon.data.parent, "--nodes", "a:cpu:1")
    assert ended.returncode == 75
    assert "Another node daemon runs on this data folder" in ended.stderr
    assert daemon.cluster.nodes()


def test_each_node_reports_the_whole_machines_memory(daemon) -> None:
    reported = {node.name: node.learner_mib for node in daemon.cluster.nodes()}
    assert reported == {"node-a": machine_mib(), "node-b": machine_mib()}


def test_the_socket_is_for_its_owner_only(daemon) -> None:
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o600
