"""What the pods of a gang say about its learners."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from gpu_scheduler.clusters.base import (
    STOPPED_BEFORE_PROGRAM,
    STOPPED_CODE,
    EndReason,
    GangReport,
    LearnerPhase,
    LearnerReport,
    memory_exceeded,
    memory_numbers,
)
from gpu_scheduler.clusters.kubernetes import manifests, resources
from gpu_scheduler.clusters.kubernetes.manifests import LEARNER

Object = dict[str, Any]

DIGEST = re.compile(r"sha(256|512):[0-9a-f]{64,128}$")
NO_SUCH_IMAGE = frozenset({"InvalidImageName", "ErrImageNeverPull"})
PULLING = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
FINAL_PULL_ERRORS = ("not found", "manifest unknown", "denied", "unauthorized", "does not exist", "forbidden")
"""In the message of a failed pull: trying again does not help. Anything else may be a registry that is down."""
NO_SUCH_FOLDER = ("subPath", f'"{manifests.DATA}"')
"""In the message of a container that cannot be made: the claim lacks a data set, and its volume cannot be changed."""
BAD_CONTAINER = frozenset({"CreateContainerError", "CreateContainerConfigError", "RunContainerError"})
PREPARED_S = 15.0
"""A kubelet mounts volumes and connects the network within a second or two."""
DISRUPTIONS = {
    "PreemptionByScheduler": EndReason.PREEMPTED_BY_CLUSTER,
    "DeletionByTaintManager": EndReason.NODE_LOST,
    "DeletionByPodGC": EndReason.NODE_LOST,
    "EvictionByEvictionAPI": EndReason.EVICTED,
    "TerminationByKubelet": EndReason.EVICTED,
}
"""Reasons of the condition DisruptionTarget."""
POD_REASONS = {
    "Evicted": EndReason.EVICTED,
    "Preempting": EndReason.PREEMPTED_BY_CLUSTER,
    "Terminated": EndReason.NODE_LOST,
    "NodeShutdown": EndReason.NODE_LOST,
    "Shutdown": EndReason.NODE_LOST,
    "NodeLost": EndReason.NODE_LOST,
    "UnexpectedAdmissionError": EndReason.NOT_PREPARED,
    "NodeAffinity": EndReason.NOT_PREPARED,
}
"""Reasons in the status of a pod that has failed. One that starts with OutOf: the kubelet had no room for it."""
CONTAINER_REASONS = {
    "OOMKilled": EndReason.OUT_OF_MEMORY,
    "Unknown": EndReason.NODE_LOST,
    "ContainerStatusUnknown": EndReason.NODE_LOST,
}
"""Reasons of a container's end. Unknown is the runtime's and ContainerStatusUnknown the kubelet's word for one that is
no longer there: its node restarted within the seconds after which the control plane would have noticed."""
START_ERROR = "StartError"
MADE_UP_CODE = frozenset({"Unknown", "ContainerStatusUnknown", START_ERROR})
"""With these reasons the exit code (255, 137, 128) is no program's."""
CANNOT_RUN = ('exec: "', "exec format error", "executable file")
"""In the message of a StartError: the image lacks what the pod runs, or has it for other processors. Any other one is
the node's, such as a GPU driver that is not loaded."""


def gang(name: str, pods: Iterable[Object], nodes: Mapping[str, bool]) -> GangReport:
    """One gang. nodes: each node's name, and whether it is ready."""
    learners = sorted(((learner(pod, nodes), pod) for pod in pods), key=lambda each: each[0].rank)
    stopping = any(is_deleted(pod) and disruption(pod) is None for _, pod in learners)
    waits = [
        f"Learner {each.rank}: {each.message}"
        for each, _ in learners
        if each.phase is LearnerPhase.PREPARING and each.message
    ]
    return GangReport(name, tuple(each for each, _ in learners), stopping, waits[0] if waits else "")


def learner(pod: Object, nodes: Mapping[str, bool]) -> LearnerReport:
    """One learner. The finalizer keeps a pod until ``remove``, so that its end is always seen here."""
    metadata, node = pod["metadata"], node_of(pod)
    phase, reason, code, message = _state(pod, nodes.get(node))
    numbers = {}
    if reason is EndReason.OUT_OF_MEMORY:
        limit = memory_limit_mib(pod)
        # The kernel kills at the limit, and more was never measured.
        message, numbers = memory_exceeded(limit, limit), memory_numbers(limit, limit)
    return LearnerReport(
        int(metadata["labels"][manifests.RANK]),
        node,
        metadata["uid"],
        phase,
        code,
        reason,
        message,
        numbers,
        program_ended=_terminated(pod) is not None,
        image=next(
            (str(each.get("image", "")) for each in pod["spec"]["containers"] if each["name"] == LEARNER), ""
        ),
        image_digest=_digest(pod),
    )


def has_ended(pod: Object) -> bool:
    """No process of it is left, or will be: a pod that was deleted before it had a node never gets one."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return True
    return is_deleted(pod) and not pod["spec"].get("nodeName")


def is_deleted(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def node_of(pod: Object) -> str:
    """Where the scheduler of the platform has put it."""
    return str(pod["metadata"].get("annotations", {}).get(manifests.NODE) or pod["spec"].get("nodeName", ""))


def disruption(pod: Object) -> tuple[EndReason, str] | None:
    """Why the cluster itself ends or ended this pod."""
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            reason = DISRUPTIONS.get(condition.get("reason", ""), EndReason.EVICTED)
            return reason, condition.get("message", "")
    return None


def memory_limit_mib(pod: Object) -> int:
    [container] = [each for each in pod["spec"]["containers"] if each["name"] == LEARNER]
    limit = container.get("resources", {}).get("limits", {}).get("memory", 0)
    return int(resources.quantity(limit) // resources.MIB)


State = tuple[LearnerPhase, EndReason | None, int | None, str]


def _state(pod: Object, node_ready: bool | None) -> State:
    if has_ended(pod):
        return _end(pod)
    if node_ready is not True:
        lost = "no longer exists" if node_ready is None else "is not responding"
        return LearnerPhase.UNKNOWN, None, None, f"Node {node_of(pod)} {lost}."
    disrupted = disruption(pod)
    reason, message = disrupted or (None, "")
    if (terminated := _terminated(pod)) is not None:
        reason = reason or _reason_of(terminated)
        return LearnerPhase.RUNNING, reason, _exit_code(terminated), message or terminated.get("message", "")
    state = _container_state(pod)
    if "running" in state:
        return LearnerPhase.RUNNING, reason, None, message
    if failure := _never_starts(pod):
        return LearnerPhase.FAILED, *failure
    return LearnerPhase.PREPARING, reason, None, message or _waits_for(pod)


def _end(pod: Object) -> State:
    status, terminated = pod.get("status", {}), _terminated(pod)
    pod_reason, message = status.get("reason", ""), status.get("message", "")
    code = _exit_code(terminated) if terminated else None
    phase = LearnerPhase.SUCCEEDED if code == 0 else LearnerPhase.FAILED
    if disrupted := disruption(pod):  # one that saved when it was asked to leave ends with 0
        return phase, disrupted[0], code, disrupted[1] or message
    if code == 0:
        return phase, EndReason.EXITED, code, ""
    if pod_reason in POD_REASONS:
        return LearnerPhase.FAILED, POD_REASONS[pod_reason], code, message
    if pod_reason.startswith("OutOf"):
        return LearnerPhase.FAILED, EndReason.NOT_PREPARED, code, message
    if terminated is not None:
        return LearnerPhase.FAILED, _reason_of(terminated), code, terminated.get("message", "")
    if is_deleted(pod):
        return LearnerPhase.FAILED, EndReason.STOPPED, STOPPED_CODE, STOPPED_BEFORE_PROGRAM
    if failure := _never_starts(pod):
        return LearnerPhase.FAILED, *failure
    return LearnerPhase.FAILED, EndReason.LAUNCHER_LOST, None, message


def _reason_of(terminated: Object) -> EndReason:
    why = terminated.get("reason", "")
    if why == START_ERROR:
        final = any(each in terminated.get("message", "") for each in CANNOT_RUN)
        return EndReason.IMAGE_ERROR if final else EndReason.NOT_PREPARED
    return CONTAINER_REASONS.get(why, EndReason.EXITED)


def _exit_code(terminated: Object) -> int | None:
    """None: the program's own is not known, or it has not run."""
    return None if terminated.get("reason") in MADE_UP_CODE else int(terminated["exitCode"])


def _never_starts(pod: Object) -> tuple[EndReason, int | None, str] | None:
    """An error of the pod's containers that no waiting resolves."""
    for container in _statuses(pod):
        waiting = container.get("state", {}).get("waiting", {})
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        final = any(each in message.lower() for each in FINAL_PULL_ERRORS)
        if reason in NO_SUCH_IMAGE or (reason in PULLING and final):
            return EndReason.IMAGE_ERROR, None, f"Cannot pull image {container['image']}: {message}"
        if reason in BAD_CONTAINER and all(each in message for each in NO_SUCH_FOLDER):
            return EndReason.DATA_ERROR, None, f"The tenant has no such data set: {message}"
    for container in pod.get("status", {}).get("initContainerStatuses", []):
        ended = container.get("state", {}).get("terminated", {})
        if container["name"] == manifests.LAUNCHER and ended.get("exitCode", 0) != 0:
            said = ended.get("message") or f"exit code {ended['exitCode']}"
            reason = _reason_of(ended) if ended.get("reason") in MADE_UP_CODE else EndReason.DEPLOY_FAILED
            return reason, None, f"The learner agent could not be copied: {said}"
    return None


def _waits_for(pod: Object) -> str:
    """Why a pod does not run yet, for people."""
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"Cannot be placed on {node_of(pod)}: {condition.get('message', '')}"
    for container in _statuses(pod):
        waiting = container.get("state", {}).get("waiting", {})
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in PULLING:
            return f"Cannot pull image {container['image']} yet: {message}"
        if reason in BAD_CONTAINER:
            return f"Cannot start container {container['name']} yet: {message}"
    return _waits_for_node(pod)


def _waits_for_node(pod: Object) -> str:
    """What the kubelet has not prepared for long. The cause is in the pod's events alone, which are not read here."""
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] != "PodReadyToStartContainers" or condition["status"] != "False":
            continue
        since = datetime.fromisoformat(condition["lastTransitionTime"])
        if (datetime.now(UTC) - since).total_seconds() < PREPARED_S:
            return ""
        claims = [
            volume["persistentVolumeClaim"]["claimName"]
            for volume in pod["spec"].get("volumes", [])
            if "persistentVolumeClaim" in volume
        ]
        of = f" (claims: {', '.join(claims)})" if claims else ""
        return (
            f"Node {node_of(pod)} has not prepared its volumes{of} or its network."
            f" See `kubectl describe pod {pod['metadata'].get('name', '')}`."
        )
    return ""


def _statuses(pod: Object) -> list[Object]:
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def _container_state(pod: Object) -> Object:
    found: Object = _container_status(pod).get("state", {})
    return found


def _container_status(pod: Object) -> Object:
    found = pod.get("status", {}).get("containerStatuses", [])
    return next((each for each in found if each["name"] == LEARNER), {})


def _digest(pod: Object) -> str:
    """A runtime writes it behind the image's name, or alone, and leaves it empty until it has the image."""
    found = DIGEST.search(str(_container_status(pod).get("imageID") or ""))
    return found[0] if found else ""


def _terminated(pod: Object) -> Object | None:
    """How the program's container ended. None: it has not."""
    terminated: Object | None = _container_state(pod).get("terminated")
    return terminated
