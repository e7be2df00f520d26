"""Enforce NetworkPolicy on the test nodes with nftables. For tests only: production clusters have their own.

    python -m tools.kube.netpol KUBECONFIG NODE=PID ...      PID: the holder of the node's network namespace

It reads pods, namespaces and policies every POLL_S, and when what they mean for a node has changed, replaces the node's
table in one transaction. Egress of a pod is judged on its own node and ingress on the peer's, both after kube-proxy has
translated Service addresses. A node itself may always reach its pods, as kubelets must. IPv4 only, without SCTP.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from tools.kube.client import Api, ApiError, Object
from tools.kube.network import enter

TABLE = "luthier_netpol"
POLL_S = 0.3
POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
NAME_LABEL = "kubernetes.io/metadata.name"


@dataclass(frozen=True, slots=True)
class Direction:
    """kind: in policyTypes. field, peers: of a policy's rules and of a rule's peers. own, peer: nft's for addresses."""

    kind: str
    field: str
    peers: str
    own: str
    peer: str


EGRESS = Direction("Egress", "egress", "to", "ip saddr", "ip daddr")
INGRESS = Direction("Ingress", "ingress", "from", "ip daddr", "ip saddr")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Running pods with an address of their own, labels by namespace, and policies."""

    pods: list[Object]
    namespaces: dict[str, dict[str, str]]
    policies: list[Object]

    @classmethod
    def of(cls, pods: Iterable[Object], namespaces: Iterable[Object], policies: list[Object]) -> Snapshot:
        names = {each["metadata"]["name"]: _labels(each) for each in namespaces}
        labeled = {name: {**labels, NAME_LABEL: name} for name, labels in names.items()}
        return cls([pod for pod in pods if _is_reachable(pod)], labeled, policies)

    @classmethod
    def read(cls, api: Api) -> Snapshot:
        paths = ("/api/v1/pods", "/api/v1/namespaces", POLICIES)
        return cls.of(*(api.get(path, resourceVersion="0")["items"] for path in paths))


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a rule allows traffic to or from. condition: of nft. pods: those behind it, for named ports."""

    condition: str
    pods: list[Object]


def table(node: str, found: Snapshot) -> str:
    """nft's commands that replace the table of this node."""
    chains: list[str] = []
    jumps: dict[Direction, list[str]] = {EGRESS: [], INGRESS: []}
    for number, pod in enumerate(pod for pod in found.pods if pod["spec"].get("nodeName") == node):
        for direction, own_jumps in jumps.items():
            rules = _rules(pod, direction, found)
            if rules is None:
                continue
            chain = f"{direction.field}_{number}"
            returns = "".join(f"    {rule} return\n" for rule in rules)
            chains.append(f"  chain {chain} {{\n{returns}    reject\n  }}\n")
            own_jumps.append(f"{direction.own} {_address(pod)} jump {chain}")
    # To another node's kubelet a packet is forwarded, to that of its own node it is not.
    hooks = _hook("forward", jumps[EGRESS] + jumps[INGRESS]) + _hook("input", jumps[EGRESS])
    content = "".join(chains) + hooks
    return f"table inet {TABLE} {{}}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n{content}}}\n"


def _hook(name: str, jumps: list[str]) -> str:
    lines = [
        f"type filter hook {name} priority 0; policy accept;",
        "ct state established,related accept",
        *jumps,
    ]
    return f"  chain {name} {{\n" + "".join(f"    {line}\n" for line in lines) + "  }\n"


def _rules(pod: Object, direction: Direction, found: Snapshot) -> list[str] | None:
    """What the pod may exchange in this direction, as conditions of nft. None: no policy isolates it."""
    namespace = pod["metadata"]["namespace"]
    specs = [
        policy["spec"]
        for policy in found.policies
        if policy["metadata"]["namespace"] == namespace
        and selects(policy["spec"].get("podSelector") or {}, _labels(pod))
        and direction.kind in _types(policy["spec"])
    ]
    if not specs:
        return None
    return [
        condition
        for spec in specs
        for rule in spec.get(direction.field) or []
        for peer in _peers(rule.get(direction.peers), direction, namespace, found)
        for condition in _with_ports(peer, rule.get("ports"), direction, pod)
    ]


def _types(spec: Object) -> list[str]:
    stated: list[str] | None = spec.get("policyTypes")
    return stated or (["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])


def _peers(
    stated: list[Object] | None, direction: Direction, namespace: str, found: Snapshot
) -> Iterator[Peer]:
    if not stated:
        yield Peer("", found.pods)
        return
    pods: list[Object] = []
    for each in stated:
        if block := each.get("ipBlock"):
            if ":" not in block["cidr"]:
                yield Peer(_in_block(block, direction), [])
        else:
            pods += _selected_pods(each, namespace, found)
    if pods:
        yield Peer(f"{direction.peer} {_set(sorted({_address(pod) for pod in pods}))}", pods)


def _selected_pods(peer: Object, namespace: str, found: Snapshot) -> list[Object]:
    spaces = {namespace}
    if (selector := peer.get("namespaceSelector")) is not None:
        spaces = {name for name, labels in found.namespaces.items() if selects(selector, labels)}
    return [
        pod
        for pod in found.pods
        if pod["metadata"]["namespace"] in spaces and selects(peer.get("podSelector") or {}, _labels(pod))
    ]


def _in_block(block: Object, direction: Direction) -> str:
    excepted = block.get("except")
    without = f" {direction.peer} != {_set(excepted)}" if excepted else ""
    return f"{direction.peer} {block['cidr']}{without}"


def _with_ports(peer: Peer, ports: list[Object] | None, direction: Direction, owner: Object) -> Iterator[str]:
    if not ports:
        yield peer.condition
    for stated in ports or []:
        protocol, port = stated.get("protocol", "TCP"), stated.get("port")
        word = protocol.lower()
        if port is None:
            yield f"{peer.condition} meta l4proto {word}"
        elif isinstance(port, int):
            last = f"-{stated['endPort']}" if stated.get("endPort") else ""
            yield f"{peer.condition} {word} dport {port}{last}"
        elif direction is INGRESS:  # the name is that of a port of the isolated pod itself
            for number in _ports_named(port, protocol, owner):
                yield f"{peer.condition} {word} dport {number}"
        else:
            for pod in peer.pods:
                for number in _ports_named(port, protocol, pod):
                    yield f"ip daddr {_address(pod)} {word} dport {number}"


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a label selector means these labels; an empty one means all."""
    equal = all(labels.get(name) == value for name, value in (selector.get("matchLabels") or {}).items())
    return equal and all(_holds(each, labels) for each in selector.get("matchExpressions") or [])


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
    name, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(name) in values
        case "NotIn":
            return labels.get(name) not in values
        case "Exists":
            return name in labels
        case "DoesNotExist":
            return name not in labels
    raise ValueError(f"unknown operator {expression['operator']}")


def _is_reachable(pod: Object) -> bool:
    status = pod["status"]
    ended = status.get("phase") in ("Succeeded", "Failed")
    return bool(status.get("podIP")) and not ended and not pod["spec"].get("hostNetwork")


def _labels(found: Object) -> dict[str, str]:
    return found["metadata"].get("labels") or {}


def _address(pod: Object) -> str:
    return str(pod["status"]["podIP"])


def _ports_named(name: str, protocol: str, pod: Object) -> list[int]:
    return [
        port["containerPort"]
        for container in pod["spec"]["containers"]
        for port in container.get("ports") or []
        if port.get("name") == name and port.get("protocol", "TCP") == protocol
    ]


def _set(members: Iterable[str]) -> str:
    return f"{{ {', '.join(members)} }}"


def is_enforced(holder: int) -> bool:
    """Whether the node whose namespace this process holds has its table."""
    command = [*enter(holder), "nft", "list", "table", "inet", TABLE]
    return subprocess.run(command, capture_output=True, timeout=30).returncode == 0


def _enforce(holder: int, commands: str) -> bool:
    done = subprocess.run(
        [*enter(holder), "nft", "-f", "-"], input=commands, text=True, capture_output=True, timeout=30
    )
    if done.returncode != 0:
        print(done.stderr, commands, sep="\n", flush=True)
    return done.returncode == 0


def main(kubeconfig: str, *nodes: str) -> None:
    api = Api(Path(kubeconfig))
    holders = {name: int(pid) for name, _, pid in (node.partition("=") for node in nodes)}
    enforced: dict[str, str] = {}
    while True:
        try:
            found = Snapshot.read(api)
            for node, holder in holders.items():
                wanted = table(node, found)
                if enforced.get(node) != wanted and _enforce(holder, wanted):
                    enforced[node] = wanted
        except (OSError, HTTPException, ApiError, json.JSONDecodeError) as error:
            print(error, flush=True)  # the API server is stopped in some tests
        time.sleep(POLL_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
