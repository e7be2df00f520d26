"""Names, labels and contents of the objects of one attempt. A real API server admits them in tests/cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from gpu_scheduler.clusters.base import GangSpec
from gpu_scheduler.clusters.kubernetes import manifests, resources
from gpu_scheduler.clusters.kubernetes.manifests import Manifest
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings
from gpu_scheduler.model import CPU_TYPE, Resources
from tests.gpu_scheduler.clusters.harness import launch
from tests.gpu_scheduler.clusters.kubernetes_specs import OWNER, SETTINGS, gang_specs

SPEC = launch("job-x-1", "runs", "runs", nodes=("node-a", "node-b"))
GPU_SPEC = replace(SPEC, slot_type="h100", slots=8, cpus=12.5)


def pod(spec: GangSpec = SPEC, rank: int = 0) -> Manifest:
    return manifests.pod(spec, rank, SETTINGS, "test.invalid/program:1", OWNER)


def learner(spec: GangSpec = SPEC, rank: int = 0) -> Manifest:
    [container] = pod(spec, rank)["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def env(container: Manifest) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_names_depend_on_the_gang_and_the_rank_only() -> None:
    later = replace(SPEC, grace_s=7, memory_mib=1, tenant="blue")
    for spec in (SPEC, later):
        assert manifests.service(spec, SETTINGS)["metadata"]["name"] == "job-x-1"
        assert manifests.secret(spec, SETTINGS, OWNER)["metadata"]["name"] == "job-x-1"
        assert [pod(spec, rank)["metadata"]["name"] for rank in (0, 1)] == ["job-x-1-0", "job-x-1-1"]


@given(gang_specs())
def test_every_object_is_found_by_the_installation_and_by_its_gang(spec: GangSpec) -> None:
    pods = [pod(spec, each.rank) for each in spec.learners]
    for made in (manifests.service(spec, SETTINGS), manifests.secret(spec, SETTINGS, OWNER), *pods):
        labels = made["metadata"]["labels"]
        wanted = dict(each.split("=") for each in manifests.selector(SETTINGS, spec.name).split(","))
        assert labels.items() >= wanted.items()
        assert wanted[manifests.INSTALLATION] == "test"


@given(gang_specs())
def test_the_plan_counts_what_the_kubelet_admits(spec: GangSpec) -> None:
    """A pod's request is its learner's, and what its node says that each learner takes beyond it."""
    more, needed = resources.PER_LEARNER, resources.needed_by(pod(spec), SETTINGS.gpu_resource)
    request = Resources.of_slots(spec.slot_type, spec.slots, cpus=spec.cpus, memory_mib=spec.memory_mib)
    slots, cpus, memory_mib = request.needed(spec.slot_type)
    assert (needed.cpus if spec.slot_type == CPU_TYPE else needed.gpus) == slots
    assert needed.memory == (memory_mib + (more.memory_mib or 0)) * resources.MIB
    if spec.slot_type != CPU_TYPE:
        assert needed.cpus * 1000 <= cpus + (more.cpus or 0) * 1000 + 1e-6


def kubernetes_node(*, taints: Sequence[dict[str, str]] = (), said: str = "", **spec: object) -> Manifest:
    """Eight GPUs, of which six work."""
    gpu = SETTINGS.gpu_resource
    ready = {"type": "Ready", "status": "Unknown" if said else "True", "message": said}
    return {
        "metadata": {"name": "node-a"},
        "spec": {"taints": list(taints), **spec},
        "status": {
            "capacity": {gpu: "8"},
            "allocatable": {gpu: "6", "cpu": "63500m", "memory": "64Gi"},
            "conditions": [ready],
        },
    }


def test_a_node_offers_what_is_healthy_and_says_how_much_is_not() -> None:
    holding = resources.Holding(
        "node-a", resources.Amount(0, 0.25, 100 * resources.MIB, 1), ours=False, gpus={"nvidia.com/gpu": 1}
    )
    node = resources.to_node(kubernetes_node(), [holding], SETTINGS.gpu_resources())
    assert node.allocatable == Resources(6, 63.5, 65_536)
    assert node.used_by_others == Resources(1, 0.25, 100)
    assert (node.unhealthy, node.takes_learners, node.why) == (2, True, "")


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (kubernetes_node(unschedulable=True), "Cordoned (kubectl uncordon ends it)."),
        (
            kubernetes_node(taints=[{"key": "team", "value": "nlp", "effect": "NoSchedule"}]),
            "Tainted with team=nlp:NoSchedule, which learners do not tolerate.",
        ),
        (
            kubernetes_node(said="Kubelet stopped posting node status."),
            "Not ready: Kubelet stopped posting node status.",
        ),
    ],
)
def test_a_node_that_takes_no_learners_says_why(node: Manifest, why: str) -> None:
    seen = resources.to_node(node, [], SETTINGS.gpu_resources())
    assert (seen.takes_learners, seen.why) == (False, why)


def test_the_taint_of_gpu_nodes_is_tolerated() -> None:
    taint = {"key": SETTINGS.gpu_resource, "value": "present", "effect": "NoSchedule"}
    assert resources.to_node(kubernetes_node(taints=[taint]), [], SETTINGS.gpu_resources()).takes_learners


SILENT = [
    {"key": f"node.kubernetes.io/{why}", "effect": "NoExecute", "operator": "Exists"}
    for why in ("not-ready", "unreachable")
]


def test_a_silent_node_keeps_its_pods_without_end_and_takes_no_others() -> None:
    """The platform decides what is lost. The control plane knows nothing of the agents."""
    assert pod()["spec"]["tolerations"] == SILENT, "no tolerationSeconds: without end"
    silence = {"key": "node.kubernetes.io/unreachable"}
    for effect, takes in (("NoExecute", True), ("NoSchedule", False)):
        node = kubernetes_node(taints=[silence | {"effect": effect}])
        assert resources.to_node(node, [], SETTINGS.gpu_resources()).takes_learners is takes


CHOSEN = replace(
    SETTINGS,
    tolerations="team=nlp:NoSchedule,spot:NoExecute",
    priority_class="training",
    pull_secrets="registry-a,registry-b",
)


def test_pods_get_what_the_installations_administrators_chose() -> None:
    made = manifests.pod(GPU_SPEC, 0, CHOSEN, "test.invalid/program:1", OWNER)["spec"]
    assert made["priorityClassName"] == "training"
    assert made["imagePullSecrets"] == [{"name": "registry-a"}, {"name": "registry-b"}]
    assert made["tolerations"] == [
        *SILENT,
        {"key": "team", "effect": "NoSchedule", "operator": "Equal", "value": "nlp"},
        {"key": "spot", "effect": "NoExecute", "operator": "Exists"},
        {"key": SETTINGS.gpu_resource, "operator": "Exists", "effect": "NoSchedule"},
    ]
    assert {"priorityClassName", "imagePullSecrets"}.isdisjoint(pod()["spec"])


@pytest.mark.parametrize(
    ("taint", "takes"),
    [
        ({"key": "team", "value": "nlp", "effect": "NoSchedule"}, True),
        ({"key": "team", "value": "vision", "effect": "NoSchedule"}, False),
        ({"key": "team", "value": "nlp", "effect": "NoExecute"}, False),
        ({"key": "spot", "value": "yes", "effect": "NoExecute"}, True),
    ],
)
def test_a_node_with_a_tolerated_taint_takes_learners(taint: dict[str, str], takes: bool) -> None:
    node = kubernetes_node(taints=[taint])
    seen = resources.to_node(node, [], SETTINGS.gpu_resources(), CHOSEN.tolerated())
    assert seen.takes_learners is takes


@pytest.mark.parametrize("text", ["team", "team=nlp", "team:Never", "=x:NoSchedule"])
def test_a_toleration_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not key=value:Effect or key:Effect"):
        replace(SETTINGS, tolerations=text).tolerated()


def test_the_service_owns_the_rest() -> None:
    created = manifests.service(SPEC, SETTINGS)
    created["metadata"]["uid"] = "0b7f"
    assert manifests.owner(created) == OWNER
    for made in (pod(), manifests.secret(SPEC, SETTINGS, OWNER)):
        assert made["metadata"]["ownerReferences"] == [OWNER]


def test_a_learner_goes_to_the_node_of_the_plan_only() -> None:
    affinity = pod(rank=1)["spec"]["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-b"]}]}


@given(gang_specs())
def test_a_secret_is_in_no_pod(spec: GangSpec) -> None:
    for each in spec.learners:
        assert each.secret not in json.dumps(pod(spec, each.rank))
    stored = manifests.secret(spec, SETTINGS, OWNER)["stringData"]
    assert {stored[f"rank-{each.rank}"] for each in spec.learners} == {each.secret for each in spec.learners}


def test_a_program_sees_the_hostfile_and_no_secret() -> None:
    [volume] = [each for each in pod()["spec"]["volumes"] if "secret" in each]
    assert [item["key"] for item in volume["secret"]["items"]] == ["hostfile"]
    assert not any("valueFrom" in each for each in learner()["env"])
    hosts = manifests.secret(SPEC, SETTINGS, OWNER)["stringData"]["hostfile"]
    assert hosts == "rank-0.job-x-1 slots=1\nrank-1.job-x-1 slots=1\n"


def test_no_module_that_the_program_writes_runs_in_the_shipper(tmp_path: Path) -> None:
    """Python imports from its working directory first, and the shipper has the secret of the learner."""
    for folder, word in (("agent", "agent"), ("work", "program"), ("work/code", "program")):
        package = tmp_path / folder / "learner_agent"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(f"print({word!r})")
    [shipper] = [each for each in pod()["spec"]["initContainers"] if each["name"] == manifests.SHIPPER]
    variables = {name: value.replace("/luthier", str(tmp_path)) for name, value in env(shipper).items()}
    ran = subprocess.run(
        [sys.executable, *shipper["command"][1:]],
        cwd=shipper["workingDir"].replace("/luthier", str(tmp_path)),
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "agent\n"


def test_a_command_that_is_a_list_reaches_the_launcher_word_by_word() -> None:
    assert learner(replace(SPEC, command="exec a $X"))["command"][3:] == []
    words = learner(replace(SPEC, command=["python", "a b.py", "$(X)"]))["command"][3:]
    assert words == ["--", "python", "a b.py", "$$(X)"]


@pytest.mark.parametrize("distributed", [True, False])
def test_a_pod_has_the_hostfile_and_its_variables_only_if_the_gang_is_distributed(distributed: bool) -> None:
    spec = replace(SPEC, distributed=distributed)
    stored = manifests.secret(spec, SETTINGS, OWNER)["stringData"]
    volumes = [each["name"] for each in pod(spec)["spec"]["volumes"]]
    mounts = [each["name"] for each in learner(spec)["volumeMounts"]]
    assert ["hostfile" in stored, "gang" in volumes, "gang" in mounts] == [distributed] * 3
    assert ["RANK" in env(learner(spec)), "MPI_HOSTFILE" in env(learner(spec))] == [distributed] * 2
    assert env(learner(spec))["NUM_LEARNERS"] == str(len(spec.learners))


def test_learners_find_each_other_by_the_gangs_dns_names() -> None:
    found = env(learner(rank=1))
    assert (found["MASTER_ADDR"], found["RANK"], found["WORLD_SIZE"]) == ("rank-0.job-x-1", "1", "2")
    made = pod(rank=1)["spec"]
    assert (made["hostname"], made["subdomain"]) == ("rank-1", "job-x-1")


@pytest.mark.parametrize(
    ("learners", "distributed", "found"),
    [(1, None, False), (1, False, False), (1, True, True), (2, None, True), (2, False, True)],
)
def test_a_service_follows_the_pods_of_gangs_whose_learners_may_look_for_each_other(
    learners: int, distributed: bool | None, found: bool
) -> None:
    """A single learner of an elastic job is distributed: its program finds the same at every size."""
    spec = replace(SPEC, learners=SPEC.learners[:learners], distributed=distributed)
    made = manifests.service(spec, SETTINGS)["spec"]
    assert made["clusterIP"] == "None"
    assert ("selector" in made, "publishNotReadyAddresses" in made) == (found, found)


def test_gpus_are_asked_for_by_the_name_of_the_resource() -> None:
    for kind in ("requests", "limits"):
        assert learner(GPU_SPEC)["resources"][kind] == {
            "cpu": "12500m",
            "memory": "512Mi",
            "nvidia.com/gpu": "8",
        }
    other = KubernetesSettings("test", "agent", gpu_resource="amd.com/gpu")
    made = manifests.pod(GPU_SPEC, 0, other, "image", OWNER)["spec"]
    assert made["containers"][0]["resources"]["requests"]["amd.com/gpu"] == "8"
    assert made["tolerations"][-1] == {"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def test_the_cpus_of_a_pod_are_its_slots() -> None:
    made = pod(replace(SPEC, slots=3))["spec"]
    sidecars = [each for each in made["initContainers"] if each.get("restartPolicy") == "Always"]
    assert [each["name"] for each in sidecars] == ["shipper"]
    assert [each["resources"]["requests"]["cpu"] for each in [*sidecars, *made["containers"]]] == ["0", "3"]


def test_a_value_with_a_dollar_is_passed_as_it_is() -> None:
    rich = replace(SPEC, command="echo $(HOME) $$")
    assert env(learner(rich))["TRAINING_COMMAND"] == "echo $$(HOME) $$$$"


@pytest.mark.parametrize(("asked", "seconds"), [(0, 1), (0.5, 1), (5, 5), (5.1, 6)])
def test_a_grace_period_is_never_zero(asked: float, seconds: int) -> None:
    assert manifests.grace(asked) == seconds


def test_settings_name_the_variable_that_is_missing() -> None:
    with pytest.raises(ValueError, match="KUBE_INSTALLATION is not set"):
        KubernetesSettings.read({})
    with pytest.raises(ValueError, match="KUBE_AGENT_IMAGE is not set"):
        KubernetesSettings.read({"KUBE_INSTALLATION": "prod"})
    given = {"KUBE_INSTALLATION": "prod", "KUBE_AGENT_IMAGE": "a", "KUBE_GPU_RESOURCE": "amd.com/gpu"}
    assert KubernetesSettings.read({**given, "KUBECONFIG": "/k"}) == KubernetesSettings(
        "prod", "a", gpu_resource="amd.com/gpu", kubeconfig="/k"
    )


def test_setup_commands_reach_the_launcher_in_the_pod() -> None:
    commands = ["pip install tqdm", "echo $HOME"]
    given = env(learner(replace(SPEC, setup=commands)))
    assert json.loads(given["LUTHIER_SETUP"].replace("$$", "$")) == commands
    assert "LUTHIER_SETUP" not in env(learner())


def test_the_programs_secrets_are_in_the_secret_object_and_reach_the_learner_alone() -> None:
    spec = replace(SPEC, secrets={"WANDB_API_KEY": "own-value"})
    made = manifests.secret(spec, SETTINGS, OWNER)
    assert made["stringData"]["program.WANDB_API_KEY"] == "own-value"
    for rank in (0, 1):
        assert "own-value" not in json.dumps(pod(spec, rank))
        (given,) = [each for each in learner(spec, rank)["env"] if each["name"] == "WANDB_API_KEY"]
        reference = {"name": "job-x-1", "key": "program.WANDB_API_KEY"}
        assert given["valueFrom"] == {"secretKeyRef": reference}
        for container in pod(spec, rank)["spec"]["initContainers"]:
            assert "WANDB_API_KEY" not in json.dumps(container)
    assert "own-value" not in json.dumps(manifests.service(spec, SETTINGS))
