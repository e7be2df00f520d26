"""What a pod's status says of its learner."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpu_scheduler.clusters.base import CAUSES, Cause, EndReason, LearnerPhase
from gpu_scheduler.clusters.kubernetes import manifests, reports
from gpu_scheduler.clusters.kubernetes.client import Object


def ended(code: int, *conditions: Object) -> Object:
    """A pod whose program left with this code, and whose containers have all ended."""
    state = {"terminated": {"exitCode": code}}
    return {
        "metadata": {"uid": "u0", "labels": {manifests.RANK: "0"}, "annotations": {manifests.NODE: "node-a"}},
        "spec": {"nodeName": "node-a", "containers": [{"name": manifests.LEARNER}]},
        "status": {
            "phase": "Failed" if code else "Succeeded",
            "conditions": list(conditions),
            "containerStatuses": [{"name": manifests.LEARNER, "state": state}],
        },
    }


EVICTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "EvictionByEvictionAPI",
    "message": "Eviction API: evicting",
}


@pytest.mark.parametrize(("code", "phase"), [(0, LearnerPhase.SUCCEEDED), (143, LearnerPhase.FAILED)])
def test_an_evicted_pod_says_so_even_if_its_program_saved_and_left_with_0(
    code: int, phase: LearnerPhase
) -> None:
    shown = reports.learner(ended(code, EVICTED), {"node-a": True})
    assert (shown.phase, shown.reason, shown.exit_code) == (phase, EndReason.EVICTED, code)
    assert shown.message == EVICTED["message"]


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("EvictionByEvictionAPI", EndReason.EVICTED),
        ("TerminationByKubelet", EndReason.EVICTED),
        ("PreemptionByScheduler", EndReason.PREEMPTED_BY_CLUSTER),
        ("DeletionByTaintManager", EndReason.NODE_LOST),
        ("DeletionByPodGC", EndReason.NODE_LOST),
    ],
)
def test_each_disruption_has_its_own_reason_whatever_the_exit_code_and_the_pods_own_reason(
    why: str, reason: EndReason
) -> None:
    for code in (0, 137):
        pod = ended(code, EVICTED | {"reason": why})
        pod["status"]["reason"] = "Terminated"
        assert reports.learner(pod, {"node-a": True}).reason is reason


def test_a_data_set_that_does_not_exist_is_the_jobs_own_error() -> None:
    said = 'failed to create subPath directory for volumeMount "data" of container "learner"'
    pod = ended(0)
    waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": said}}
    pod["status"] = {"phase": "Pending", "containerStatuses": [{"name": manifests.LEARNER, "state": waiting}]}
    shown = reports.learner(pod, {"node-a": True})
    assert (shown.phase, shown.reason) == (LearnerPhase.FAILED, EndReason.DATA_ERROR)
    assert said in shown.message
    waiting["waiting"]["message"] = 'secret "x" not found'
    assert reports.learner(pod, {"node-a": True}).phase is LearnerPhase.PREPARING


def test_a_pod_without_a_disruption_has_only_exited() -> None:
    shown = reports.learner(ended(0), {"node-a": True})
    assert (shown.phase, shown.reason, shown.exit_code) == (LearnerPhase.SUCCEEDED, EndReason.EXITED, 0)


NO_PYTHON = 'failed to create containerd task: exec: "python3": executable file not found in $PATH: unknown'
NO_DRIVER = (
    "failed to create shim task: nvidia-container-cli: initialization error: driver not loaded: unknown"
)


@pytest.mark.parametrize(
    ("code", "why", "message", "reason"),
    [
        (255, "Unknown", "", EndReason.NODE_LOST),
        (137, "ContainerStatusUnknown", "The container could not be located", EndReason.NODE_LOST),
        (128, "StartError", NO_PYTHON, EndReason.IMAGE_ERROR),
        (128, "StartError", NO_DRIVER, EndReason.NOT_PREPARED),
    ],
)
def test_an_exit_code_that_is_no_programs_is_not_counted_as_its_failure(
    code: int, why: str, message: str, reason: EndReason
) -> None:
    terminated = {"exitCode": code, "reason": why, "message": message}
    pod = ended(code)
    pod["status"]["containerStatuses"][0]["state"] = {"terminated": terminated}
    for pod_phase, phase in (("Failed", LearnerPhase.FAILED), ("Running", LearnerPhase.RUNNING)):
        pod["status"]["phase"] = pod_phase  # its shipper may run for a while
        shown = reports.learner(pod, {"node-a": True})
        assert (shown.phase, shown.reason, shown.exit_code) == (phase, reason, None)
        assert (shown.message, shown.program_ended) == (message, True)
    assert CAUSES[reason] is not Cause.PROGRAM

    agent = {"name": manifests.LAUNCHER, "state": {"terminated": terminated}}
    pod["status"] = {"phase": "Failed", "initContainerStatuses": [agent]}
    copying = reports.learner(pod, {"node-a": True})
    assert (copying.phase, copying.reason) == (LearnerPhase.FAILED, reason)
    del terminated["reason"]
    assert reports.learner(pod, {"node-a": True}).reason is EndReason.DEPLOY_FAILED


def test_a_pod_whose_volumes_are_not_mounted_says_so_after_a_while() -> None:
    def shown(seconds: float, status: str = "False") -> str:
        since = datetime.now(UTC) - timedelta(seconds=seconds)
        condition = {
            "type": "PodReadyToStartContainers",
            "status": status,
            "lastTransitionTime": since.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        pod = ended(0)
        pod["metadata"]["name"] = "job-x-1-0"
        pod["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data-sets"}}]
        pod["status"] = {"phase": "Pending", "conditions": [condition]}
        learner = reports.learner(pod, {"node-a": True})
        assert learner.phase is LearnerPhase.PREPARING
        return learner.message

    assert shown(3) == ""
    assert shown(60, "True") == ""
    assert shown(60) == (
        "Node node-a has not prepared its volumes (claims: data-sets) or its network."
        " See `kubectl describe pod job-x-1-0`."
    )


@pytest.mark.parametrize(
    ("image_id", "digest"),
    [
        (f"docker.io/team/train@sha256:{'a' * 64}", f"sha256:{'a' * 64}"),
        (f"docker-pullable://team/train@sha256:{'a' * 64}", f"sha256:{'a' * 64}"),
        (f"sha256:{'b' * 64}", f"sha256:{'b' * 64}"),
        ("", ""),
        ("team/train:1", ""),
        (None, ""),
    ],
)
def test_the_digest_of_the_programs_image_is_known_once_the_kubelet_says_it(
    image_id: str | None, digest: str
) -> None:
    pod = ended(0)
    [program] = [each for each in pod["spec"]["containers"] if each["name"] == manifests.LEARNER]
    program["image"] = "team/train:1"
    shown = next(each for each in pod["status"]["containerStatuses"] if each["name"] == manifests.LEARNER)
    shown["imageID"] = image_id
    seen = reports.learner(pod, {"node-a": True})
    assert (seen.image, seen.image_digest) == ("team/train:1", digest)
    del pod["status"]
    assert reports.learner(pod, {"node-a": True}).image_digest == ""
