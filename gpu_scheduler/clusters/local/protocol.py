"""The JSON between a driver and the node daemon: one line per request, one line per response, then the socket closes.

Requests:  {"key", "op": "ping" | "nodes" | "launch" | "observe" | "stop" | "remove" | "choose" | "watch", …}
Responses: {"ok": true, "result": …}
           {"ok": false, "error": "busy" | "refused" | "wrong_key" | "bad_request", "code", "message"}

The key is in a file of the platform: a program on the same machine may reach the socket and must not be obeyed.

The results of launch, stop and remove carry a revision. After watch the daemon sends messages until the socket closes,
at least one per second: {"revision", "all": true if these are all gangs, "changed": reports, "gone": names}.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpu_scheduler.clusters.base import (
    DNS_LABEL,
    DNS_LABEL_RULE,
    EndReason,
    EnvironmentSpec,
    GangReport,
    GangSpec,
    LearnerPhase,
    LearnerReport,
    LearnerSpec,
)
from gpu_scheduler.model import CPU_TYPE, Node

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A gang of hundreds of learners with large environments still fits."""


KEY_MIN_CHARS = 32


class InvalidRequest(Exception):
    """The daemon cannot understand a request."""


class WrongKey(Exception):
    """The request does not have the node daemon's key; LUTHIER_NODE_KEY names the file that has it."""


def read_key(path: Path) -> str:
    """The key in a file. Raises OSError, and ValueError for one that could be guessed."""
    key = path.read_text().strip()
    if len(key) < KEY_MIN_CHARS:
        raise ValueError(
            f"the key has {len(key)} characters; at least {KEY_MIN_CHARS} random ones are needed"
        )
    return key


def spec_to_json(spec: GangSpec) -> dict[str, Any]:
    """Without what no daemon needs: one of the version before refuses a field that it does not know."""
    found = asdict(spec)
    del found["opportunistic"]
    return found


def spec_from_json(value: Mapping[str, Any]) -> GangSpec:
    """Read the gang to launch. Raises InvalidRequest with the field that is wrong."""
    try:
        fields = dict(value)
        learners = tuple(LearnerSpec(**learner) for learner in fields.pop("learners"))
        spec = GangSpec(learners=learners, **fields)
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidRequest(f"gang: {error}") from error
    parse_gang_name(spec.name)
    if not learners or [learner.rank for learner in learners] != list(range(len(learners))):
        raise InvalidRequest("gang.learners: there must be one per rank, in order from 0")
    if spec.slots < 1:
        raise InvalidRequest(f"gang.slots: {spec.slots} is not at least 1")
    return spec


def environment_from_json(value: Mapping[str, Any]) -> EnvironmentSpec:
    """Read what versions are to be chosen for. Raises InvalidRequest."""
    try:
        spec = EnvironmentSpec(**value)
    except TypeError as error:
        raise InvalidRequest(f"environment: {error}") from error
    if not spec.requirements or not (spec.runtime or spec.python):
        raise InvalidRequest("environment: requirements on a runtime or on a plain Python are expected")
    return spec


def parse_gang_name(value: object) -> str:
    """A name that may be part of a path. Raises InvalidRequest."""
    if not isinstance(value, str) or not DNS_LABEL.fullmatch(value):
        raise InvalidRequest(f"name: {str(value)[:80]!r} {DNS_LABEL_RULE}")
    return value


def node_to_json(node: Node) -> dict[str, Any]:
    """A process of the version before can read a node without rack and block."""
    domains = {"rack": node.rack, "block": node.block}
    return {
        "name": node.name,
        "slot_type": node.slot_type,
        "slots": node.slots,
        "ready": node.ready,
        "memory_mib": node.learner_mib,
        "cpus": node.allocatable.cpus if node.slot_type != CPU_TYPE else None,
        "divided_mib": node.allocatable.memory_mib,
        **{level: name for level, name in domains.items() if name},
    }


def node_from_json(value: Mapping[str, Any]) -> Node:
    """What a later version says of a node, too, is left out."""
    node = Node.with_slots(
        **{field: value[field] for field in ("name", "slot_type", "slots", "ready")},
        memory_mib=value.get("divided_mib"),
        cpus=value.get("cpus"),
        learner_mib=value["memory_mib"],
    )
    return replace(node, rack=value.get("rack", ""), block=value.get("block", ""))


def report_to_json(report: GangReport) -> dict[str, Any]:
    return asdict(report)


def report_from_json(value: Mapping[str, Any]) -> GangReport:
    learners = tuple(
        LearnerReport(
            **learner
            | {
                "phase": LearnerPhase(learner["phase"]),
                "reason": EndReason(learner["reason"]) if learner["reason"] else None,
            }
        )
        for learner in value["learners"]
    )
    lock = tuple(value.get("lock", ()))
    return GangReport(value["name"], learners, value["stopping"], value["message"], lock)
