"""What the test nodes' enforcer of NetworkPolicy makes of policies. Upstream's tests judge the whole of it."""

from __future__ import annotations

from typing import Any

import pytest

from tools.kube import netpol
from tools.kube.client import Object
from tools.kube.netpol import Snapshot, selects


def pod(name: str, address: str, node: str = "node-1", **more: Any) -> Object:
    metadata = {"name": name, "namespace": more.pop("namespace", "red"), "labels": {"app": name}}
    container = {"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}
    status = {"podIP": address, "phase": more.pop("phase", "Running")}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [container], **more},
        "status": status,
    }


def policy(**spec: Any) -> Object:
    return {"metadata": {"name": "p", "namespace": "red"}, "spec": {"podSelector": {}, **spec}}


def table(pods: list[Object], *policies: Object) -> str:
    spaces = [{"metadata": {"name": name, "labels": {}}} for name in ("red", "blue")]
    return netpol.table("node-1", Snapshot.of(pods, spaces, list(policies)))


def test_pods_without_a_policy_are_not_isolated() -> None:
    assert "jump" not in table([pod("a", "10.0.0.1")])


def test_pods_that_ended_or_use_the_nodes_own_network_have_no_rules() -> None:
    ended, host = pod("a", "10.0.0.1", phase="Failed"), pod("b", "10.0.0.2", hostNetwork=True)
    assert "jump" not in table([ended, host], policy(policyTypes=["Ingress"]))


def test_a_policy_without_rules_rejects_what_it_names_and_nothing_else() -> None:
    text = table([pod("a", "10.0.0.1")], policy(policyTypes=["Ingress"]))
    assert "chain ingress_0 {\n    reject\n  }" in text
    assert "ip daddr 10.0.0.1 jump ingress_0" in text
    assert "egress" not in text


def test_an_isolated_pod_does_not_reach_its_own_node_either() -> None:
    text = table([pod("a", "10.0.0.1")], policy(policyTypes=["Egress"]))
    _, _, to_node = text.partition("chain input {")
    assert "ip saddr 10.0.0.1 jump egress_0" in to_node


def test_each_pod_is_judged_on_its_own_node() -> None:
    text = table([pod("a", "10.0.0.1", node="node-2")], policy(policyTypes=["Ingress"]))
    assert "jump" not in text


def test_a_named_port_is_that_of_the_pod_which_is_reached() -> None:
    there = pod("b", "10.1.0.1", node="node-2", namespace="blue")
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "blue"}}}
    rule = {"to": [peer], "ports": [{"port": "web"}]}
    text = table([pod("a", "10.0.0.1"), there], policy(policyTypes=["Egress"], egress=[rule]))
    assert "ip daddr 10.1.0.1 tcp dport 8080 return" in text


def test_a_block_may_have_exceptions_and_a_range_of_ports() -> None:
    peer = {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}
    rule = {"from": [peer], "ports": [{"port": 80, "endPort": 90, "protocol": "UDP"}]}
    text = table([pod("a", "10.0.0.1")], policy(ingress=[rule]))
    assert "ip saddr 10.0.0.0/8 ip saddr != { 10.1.0.0/16 } udp dport 80-90 return" in text


@pytest.mark.parametrize(
    ("operator", "values", "selected"),
    [("In", ["a"], True), ("NotIn", ["a"], False), ("Exists", None, True), ("DoesNotExist", None, False)],
)
def test_expressions_of_selectors(operator: str, values: list[str] | None, selected: bool) -> None:
    expression = {"key": "app", "operator": operator, "values": values}
    assert selects({"matchExpressions": [expression]}, {"app": "a"}) is selected
