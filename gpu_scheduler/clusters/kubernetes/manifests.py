"""From a gang's spec to the Kubernetes objects of one attempt. Pure: no clock, no API, no randomness.

The headless Service is created first and owns the rest, so that its removal removes everything. Names depend on
the gang and the rank only: a repeated launch meets the objects of the first launch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpu_scheduler.clusters import environment
from gpu_scheduler.clusters.base import GangSpec
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings, label
from gpu_scheduler.model import CPU_TYPE

Manifest = dict[str, Any]

MANAGED_BY = "app.kubernetes.io/managed-by"
INSTALLATION = "luthier.dev/installation"
GANG = "luthier.dev/gang"
JOB = "luthier.dev/job"
TENANT = "luthier.dev/tenant"
RANK = "luthier.dev/rank"
NODE = "luthier.dev/node"
"""Annotation of a pod: the node that the scheduler chose. A pod has no other trace of it before it is bound."""
PARTLY_REMOVED = "luthier.dev/partly-removed"
"""Annotation of a Service: some learners were removed on purpose, so a repeated launch must not create them again."""
REFUSED = "luthier.dev/refused"
"""Annotation of a Service: the cluster refused a part of its gang. What there is of it must be gone before the gang is
launched again: an ended pod would be one of its learners."""
FINALIZER = "luthier.dev/observed"
"""Keeps an ended pod, and so its exit code, until ``remove``: a stop is a deletion, the only way to send SIGTERM."""

SILENT_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints (NoExecute) of a node whose heartbeats the control plane lacks. Learners tolerate them without end: after an
outage of the API server every node may have them until its next heartbeat, while its programs run on. What is lost
with its node is decided by the platform, which receives the agents' heartbeats as well."""

LEARNER, SHIPPER, LAUNCHER = "learner", "shipper", "launcher"
"""Containers: the program under its launcher; the sidecar that delivers its output; the one that copies the agent."""
AGENT, WORK = "/luthier/agent", "/luthier/work"
GANG_FILES = "/luthier/gang"
DATA = "data"
"""The volume of the data sets."""
FOLDERS: Mapping[str, str] = {
    "JOB_STATE_DIR": f"{WORK}/state",
    "CHECKPOINT_DIR": f"{WORK}/state/checkpoints",
    "MODEL_DIR": f"{WORK}/code",
    "DATA_DIR": f"{WORK}/data",
    "RESULT_DIR": f"{WORK}/results",
    "LOG_DIR": f"{WORK}/logs",
}
HOME, TMP = f"{WORK}/home", "/tmp"  # noqa: S108 - a volume of the pod's own
WORKER_PORT, MASTER_PORT = 29400, 29500
USER = 65534
SHIPPER_MIB, SHIPPER_CPUS = 256, "1"
"""Of the shipper. Its CPU is a limit without a request: it must not take a slot of the node from a learner."""
LAUNCHER_MIB = 64


def pod_name(gang: str, rank: int) -> str:
    return f"{gang}-{rank}"


def selector(settings: KubernetesSettings, gang: str | None = None) -> str:
    """The label selector of all objects of this installation, or of one gang."""
    ours = f"{INSTALLATION}={settings.installation}"
    return ours if gang is None else f"{ours},{GANG}={gang}"


def service(spec: GangSpec, settings: KubernetesSettings) -> Manifest:
    """The owner of everything else, and the DNS name of a gang whose learners may look for each other. Without a
    selector Kubernetes writes and follows no endpoints: nothing asks for those of a single learner."""
    found: Manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": spec.name, "labels": _labels(spec, settings)},
        "spec": {"clusterIP": "None"},
    }
    if len(spec.learners) > 1 or spec.is_distributed:
        # Learners find each other before they are ready.
        found["spec"] |= {"publishNotReadyAddresses": True, "selector": _members(spec, settings)}
    return found


def owner(created: Manifest) -> Manifest:
    """The reference to the gang's Service, as the API server returned it."""
    metadata = created["metadata"]
    return {"apiVersion": "v1", "kind": "Service", "name": metadata["name"], "uid": metadata["uid"]}


def secret(spec: GangSpec, settings: KubernetesSettings, owned_by: Manifest) -> Manifest:
    """One secret per shipper; the program's own, by their variables; and the hostfile of a distributed gang, which a
    learner sees without them."""
    content = {_secret_key(learner.rank): learner.secret for learner in spec.learners}
    content |= {_program_key(name): value for name, value in spec.secrets.items()}
    if spec.is_distributed:
        slots = max(1, spec.slots)
        content["hostfile"] = "".join(f"{_host(spec, each.rank)} slots={slots}\n" for each in spec.learners)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": spec.name, "labels": _labels(spec, settings), "ownerReferences": [owned_by]},
        "immutable": True,
        "stringData": content,
    }


def policy(spec: GangSpec, settings: KubernetesSettings, owned_by: Manifest) -> Manifest:
    """Lets the gang's pods reach each other, where the tenant's namespace denies everything (see tenancy)."""
    members = {"podSelector": {"matchLabels": _members(spec, settings)}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": spec.name, "labels": _labels(spec, settings), "ownerReferences": [owned_by]},
        "spec": {
            **members,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [members]}],
            "egress": [{"to": [members]}],
        },
    }


def pod(spec: GangSpec, rank: int, settings: KubernetesSettings, image: str, owned_by: Manifest) -> Manifest:
    """The pod of one learner. image: of its program."""
    learner = spec.learners[rank]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(spec.name, rank),
            "labels": {**_labels(spec, settings), RANK: str(rank)},
            "annotations": {NODE: learner.node},
            "ownerReferences": [owned_by],
            "finalizers": [FINALIZER],
        },
        "spec": {
            "affinity": {"nodeAffinity": _only_on(learner.node)},
            "automountServiceAccountToken": False,
            "containers": [_learner(spec, rank, settings, image)],
            "enableServiceLinks": False,  # variables of all Services of the tenant
            "hostname": f"rank-{rank}",
            "initContainers": [_launcher(settings), _shipper(spec, rank, settings)],
            "restartPolicy": "Never",
            "securityContext": {
                "fsGroup": USER,
                "runAsGroup": USER,
                "runAsNonRoot": True,
                "runAsUser": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "subdomain": spec.name,
            "terminationGracePeriodSeconds": grace(spec.grace_s),
            "tolerations": _tolerations(spec, settings),
            "volumes": _volumes(spec, settings),
            **_of_the_installation(spec, settings),
        },
    }


def grace(seconds: float) -> int:
    """A grace period in whole seconds. Never 0, which would remove the pod without waiting for its processes."""
    return max(1, math.ceil(seconds))


def _members(spec: GangSpec, settings: KubernetesSettings) -> dict[str, str]:
    """Labels that select the gang's pods."""
    return {INSTALLATION: settings.installation, GANG: spec.name}


def _labels(spec: GangSpec, settings: KubernetesSettings) -> dict[str, str]:
    return {
        MANAGED_BY: "luthier",
        INSTALLATION: settings.installation,
        GANG: spec.name,
        JOB: spec.job,
        TENANT: label(spec.tenant),
    }


def _only_on(node: str) -> Manifest:
    """By the node's name rather than by its hostname label, which may be changed."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}


def _tolerations(spec: GangSpec, settings: KubernetesSettings) -> list[Manifest]:
    """GPU nodes are often tainted with their resource's name, to keep other pods away."""
    found = [{"key": key, "effect": "NoExecute", "operator": "Exists"} for key in SILENT_NODE]
    for each in settings.tolerated():
        how = {"operator": "Exists"} if each.value is None else {"operator": "Equal", "value": each.value}
        found.append({"key": each.key, "effect": each.effect, **how})
    if spec.slot_type != CPU_TYPE:
        found.append(
            {"key": settings.gpu_resources().of(spec.slot_type), "operator": "Exists", "effect": "NoSchedule"}
        )
    return found


def _of_the_installation(spec: GangSpec, settings: KubernetesSettings) -> Manifest:
    """What its administrators chose for all pods of this pool, as far as they did."""
    found: Manifest = {}
    if runtime_class := settings.runtime_classes().of(spec.slot_type):
        found["runtimeClassName"] = runtime_class
    if priority_class := settings.opportunistic_class if spec.opportunistic else settings.priority_class:
        found["priorityClassName"] = priority_class
    if names := settings.pull_secret_names():
        found["imagePullSecrets"] = [{"name": name} for name in names]
    return found


def _volumes(spec: GangSpec, settings: KubernetesSettings) -> list[Manifest]:
    """The shared memory counts against the learner's own memory; half of it is what Linux gives a machine."""
    shared = {"medium": "Memory", "sizeLimit": f"{max(1, spec.memory_mib // 2)}Mi"}
    volumes: list[Manifest] = [
        {"name": "agent", "emptyDir": {}},
        {"name": "work", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": shared},
    ]
    if spec.is_distributed:
        hostfile = {"secretName": spec.name, "items": [{"key": "hostfile", "path": "hostfile"}]}
        volumes.append({"name": "gang", "secret": hostfile})
    if spec.data:
        claim = {"claimName": settings.data_claim, "readOnly": True}
        volumes.append({"name": DATA, "persistentVolumeClaim": claim})
    return volumes


def _data_mounts(spec: GangSpec) -> list[Manifest]:
    """Each data set by itself, so that nothing else of the volume is visible: not even names of other tenants."""
    return [
        {**_mount(DATA, f"{FOLDERS['DATA_DIR']}/{name}", read_only=True), "subPath": f"{spec.tenant}/{path}"}
        for name, path in spec.data.items()
    ]


def _launcher(settings: KubernetesSettings) -> Manifest:
    """Copies the agent to where a program's own image can run it, and makes the folders."""
    folders = " ".join([*FOLDERS.values(), HOME])
    return {
        "name": LAUNCHER,
        "image": settings.agent_image,
        "command": ["sh", "-c", f"cp -r /agent/. {AGENT} && mkdir -p {folders}"],
        "resources": _resources("0", LAUNCHER_MIB, cpu_limit=SHIPPER_CPUS),
        "securityContext": _confined(),
        "volumeMounts": [_mount("agent", AGENT), _mount("work", WORK)],
    }


def _shipper(spec: GangSpec, rank: int, settings: KubernetesSettings) -> Manifest:
    """A native sidecar: it starts before the program, outlives it to deliver the rest, and is restarted if it dies."""
    env = environment.of_shipper(spec, rank, folders=FOLDERS)
    del env["LUTHIER_SECRET"]  # readable in the pod's manifest otherwise
    return {
        "name": SHIPPER,
        "image": settings.agent_image,
        "command": ["python3", "-m", "learner_agent", "shipper"],
        "workingDir": AGENT,  # Python imports from there first, and the program writes to WORK
        "restartPolicy": "Always",
        "env": [
            *_variables({**env, "PYTHONPATH": AGENT}),
            _from_secret(spec, "LUTHIER_SECRET", _secret_key(rank)),
        ],
        "resources": _resources("0", SHIPPER_MIB, cpu_limit=SHIPPER_CPUS),
        "securityContext": _confined(),
        "volumeMounts": [_mount("agent", AGENT, read_only=True), _mount("work", WORK), _mount("tmp", TMP)],
    }


def _learner(spec: GangSpec, rank: int, settings: KubernetesSettings, image: str) -> Manifest:
    workers = [f"{_host(spec, learner.rank)}:{WORKER_PORT}" for learner in spec.learners]
    rendezvous = environment.Rendezvous(workers, f"{_host(spec, 0)}:{MASTER_PORT}", f"{GANG_FILES}/hostfile")
    env = environment.of_program(spec, rank, rendezvous=rendezvous, folders=FOLDERS)
    cpus = str(spec.slots) if spec.slot_type == CPU_TYPE else f"{max(1, round(spec.cpus * 1000))}m"
    resources = _resources(cpus, spec.memory_mib, cpu_limit=cpus)
    if spec.slot_type != CPU_TYPE and spec.slots:
        for each in resources.values():
            each[settings.gpu_resources().of(spec.slot_type)] = str(spec.slots)
    # -c, because PYTHONPATH would be the program's, too
    run = (
        f"import sys; sys.path.insert(0, {AGENT!r}); from learner_agent.__main__ import main;"
        " sys.exit(main(['launcher', *sys.argv[1:]]))"
    )
    words = [] if isinstance(spec.command, str) else ["--", *map(_literal, spec.command)]
    return {
        "name": LEARNER,
        "image": image,
        "command": ["python3", "-c", run, *words],
        "workingDir": FOLDERS["MODEL_DIR"],
        "env": [
            *_variables({"HOME": HOME, "TMPDIR": TMP, **env}),
            *(_from_secret(spec, name, _program_key(name)) for name in sorted(spec.secrets)),
        ],
        "resources": resources,
        "securityContext": _confined(),
        "volumeMounts": [
            _mount("agent", AGENT, read_only=True),
            _mount("work", WORK),
            _mount("tmp", TMP),
            _mount("shm", "/dev/shm"),  # noqa: S108 - a volume of the pod's own
            *([_mount("gang", GANG_FILES, read_only=True)] if spec.is_distributed else []),
            *_data_mounts(spec),
        ],
    }


def _resources(cpus: str, memory_mib: int, *, cpu_limit: str) -> dict[str, dict[str, str]]:
    memory = f"{memory_mib}Mi"
    return {"requests": {"cpu": cpus, "memory": memory}, "limits": {"cpu": cpu_limit, "memory": memory}}


def _confined() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def _variables(env: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": _literal(value)} for name, value in env.items()]


def _literal(text: str) -> str:
    """The dollar is doubled, because Kubernetes replaces $(NAME) in values and commands."""
    return text.replace("$", "$$")


def _from_secret(spec: GangSpec, variable: str, key: str) -> Manifest:
    """A variable whose value is not in the pod's manifest."""
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": spec.name, "key": key}}}


def _mount(volume: str, path: str, *, read_only: bool = False) -> Manifest:
    return {"name": volume, "mountPath": path, "readOnly": read_only}


def _host(spec: GangSpec, rank: int) -> str:
    """The learner's name for its peers, short: the pod's search domains add the namespace."""
    return f"rank-{rank}.{spec.name}"


def _secret_key(rank: int) -> str:
    return f"rank-{rank}"


def _program_key(variable: str) -> str:
    return f"program.{variable}"
