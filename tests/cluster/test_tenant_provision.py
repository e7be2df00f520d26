"""`manage.py tenant_provision` against a real API server: what it makes, repairs, and leaves alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from pytest_django import Settings

from gpu_scheduler.clusters.base import GangBlocked, GangSpec, LaunchRefused, ProvisionOutdated, Removal
from gpu_scheduler.clusters.kubernetes import client, driver, manifests
from gpu_scheduler.clusters.kubernetes.provisioning import COLLECTIONS
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings
from gpu_scheduler.clusters.kubernetes.tenancy import JOBS_QUOTA
from jobs.clusters import DriverSettings
from tenants.models import Quota, Tenant
from tests import factories
from tests.cluster.conftest import AddNodes, AnyCluster
from tests.gpu_scheduler.clusters.harness import launch
from tests.platform import wait_for
from tools.kube import fake
from tools.kube.client import Api, ApiError, Object

pytestmark = [pytest.mark.cluster, pytest.mark.django_db]
MADE = {
    "Namespace", "NetworkPolicy", "ServiceAccount", "ResourceQuota", "LimitRange", "Role", "RoleBinding",
    "ClusterRole", "ClusterRoleBinding", "PriorityClass",
}  # fmt: skip


@pytest.fixture
def prefix(settings: Settings, any_cluster: AnyCluster) -> Iterator[str]:
    """An installation of its own; the platform is the service account of the test cluster."""
    name = f"test-{uuid4().hex[:8]}"
    settings.KUBECONFIG = any_cluster.service_account()
    settings.KUBE_PROVISION_KUBECONFIG = any_cluster.kubeconfig
    settings.KUBE_INSTALLATION = name
    settings.KUBE_AGENT_IMAGE = "test.invalid/agent:1"
    settings.KUBE_NAMESPACE_PREFIX = f"{name}-"
    settings.KUBE_INGEST_PEERS = "luthier/app=web:8000,10.0.0.7/32:443"
    yield f"{name}-"
    for found in any_cluster.admin.get("/api/v1/namespaces")["items"]:
        if found["metadata"]["name"].startswith(name):
            any_cluster.admin.delete(f"/api/v1/namespaces/{found['metadata']['name']}")
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        with suppress(ApiError):  # not every test makes them
            any_cluster.admin.delete(f"{COLLECTIONS[kind]}/luthier-{name}")
    with suppress(ApiError):
        any_cluster.admin.delete(f"{COLLECTIONS['PriorityClass']}/luthier-{name}-opportunistic")


@pytest.fixture
def red(prefix: str) -> str:
    """A tenant with 8 GPUs and 4 CPUs. Returns its namespace."""
    factories.tenant("red", quotas={"h100": 6, "a100": 2, "cpu": 4})
    return f"{prefix}red"


def provision(*arguments: str) -> str:
    out = StringIO()
    call_command("tenant_provision", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def path(kind: str, namespace: str, name: str) -> str:
    return f"{COLLECTIONS[kind].format(namespace=namespace)}/{name}"


def test_a_tenant_gets_everything_once(red: str, api: Api) -> None:
    dry = provision("red", "--dry-run")
    assert set(re.findall(r": created (\w+)", dry)) == MADE
    with pytest.raises(ApiError, match="not found"):
        api.get(f"/api/v1/namespaces/{red}")

    wet = provision("red")
    assert wet.splitlines()[-1].startswith("1 tenants provisioned, ")
    assert set(re.findall(r": \w+ (\w+)", wet)) == MADE
    labels = api.get(f"/api/v1/namespaces/{red}")["metadata"]["labels"]
    modes = {labels[f"pod-security.kubernetes.io/{mode}"] for mode in ("enforce", "warn", "audit")}
    assert modes == {"restricted"}
    assert api.get(path("ServiceAccount", red, "default"))["automountServiceAccountToken"] is False
    nothing = {"services.loadbalancers": "0", "services.nodeports": "0"}
    assert api.get(path("ResourceQuota", red, "luthier"))["spec"]["hard"] == nothing
    jobs = api.get(path("ResourceQuota", red, JOBS_QUOTA))["spec"]
    assert jobs["hard"] == {"pods": "12", "requests.nvidia.com/gpu": "8"}
    assert provision("red") == "1 tenants provisioned, 0 changes.\n"
    assert provision("--all", "--dry-run").endswith(" tenants would be provisioned, 0 changes.\n")


def test_what_people_changed_by_hand_is_changed_back(red: str, api: Api) -> None:
    provision("red")
    api.delete(path("NetworkPolicy", red, "deny-all"))
    opened = {"spec": {"egress": [{}]}}
    api.patch(path("NetworkPolicy", red, "learners"), opened)
    api.patch(path("ResourceQuota", red, JOBS_QUOTA), {"spec": {"hard": {"pods": "1000"}}})
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    api.patch(path("Role", red, "luthier"), {"rules": [rule]})
    label = {"pod-security.kubernetes.io/enforce": "privileged", "team": "vision"}
    api.patch(f"/api/v1/namespaces/{red}", {"metadata": {"labels": label}})
    api.patch(path("ServiceAccount", red, "default"), {"automountServiceAccountToken": True})
    binding = api.get(path("RoleBinding", red, "luthier"))
    api.delete(path("RoleBinding", red, "luthier"))
    wrong = {"metadata": {"name": "luthier"}, "roleRef": {**binding["roleRef"], "name": "other"}}
    api.create(COLLECTIONS["RoleBinding"].format(namespace=red), {**wrong, "subjects": []})

    assert provision("red").splitlines() == [
        f"red: changed Namespace {red}",
        "red: created NetworkPolicy deny-all",
        "red: changed NetworkPolicy learners",
        "red: changed ServiceAccount default",
        "red: changed ResourceQuota luthier-jobs",
        "red: changed Role luthier",
        "red: replaced RoleBinding luthier",
        "1 tenants provisioned, 7 changes.",
    ]
    repaired = api.get(path("RoleBinding", red, "luthier"))
    assert repaired["roleRef"] == binding["roleRef"]
    assert repaired["subjects"] == binding["subjects"]
    assert api.get(f"/api/v1/namespaces/{red}")["metadata"]["labels"]["team"] == "vision"
    assert provision("red") == "1 tenants provisioned, 0 changes.\n"


def test_changed_limits_change_the_quota(red: str, api: Api) -> None:
    provision("red")
    Quota.objects.filter(tenant__slug="red", gpu_type="h100").update(limit=0)
    Quota.objects.filter(tenant__slug="red", gpu_type="a100").update(limit=0)
    assert "red: changed ResourceQuota luthier-jobs" in provision("red")
    hard = api.get(path("ResourceQuota", red, JOBS_QUOTA))["spec"]["hard"]
    assert (hard["pods"], hard["requests.nvidia.com/gpu"], hard["requests.cpu"]) == ("4", "0", "4")


def test_a_namespace_of_others_is_not_touched_and_the_next_tenant_is_still_provisioned(
    red: str, prefix: str, api: Api
) -> None:
    factories.tenant("violet")
    before = api.create("/api/v1/namespaces", {"metadata": {"name": red}})
    with pytest.raises(CommandError, match=r"Not provisioned: red\.$"):
        provision("red", "violet")
    assert api.get(f"/api/v1/namespaces/{red}")["metadata"]["labels"] == before["metadata"]["labels"]
    assert api.get(COLLECTIONS["NetworkPolicy"].format(namespace=red))["items"] == []
    assert api.get(path("NetworkPolicy", f"{prefix}violet", "deny-all"))

    ours = {"luthier.dev/installation": prefix.rstrip("-")}  # as the message says
    api.patch(f"/api/v1/namespaces/{red}", {"metadata": {"labels": ours}})
    assert "red: created NetworkPolicy deny-all" in provision("red")


def test_a_policy_of_others_is_reported_as_it_can_only_open(red: str, api: Api) -> None:
    provision("red")
    everything = {"metadata": {"name": "open"}, "spec": {"podSelector": {}, "ingress": [{}]}}
    api.create(COLLECTIONS["NetworkPolicy"].format(namespace=red), everything)
    assert "red: NetworkPolicy open is not from this command." in provision("red")
    assert api.get(path("NetworkPolicy", red, "open"))


def test_a_name_that_no_namespace_can_have_gets_one_of_its_own(prefix: str, api: Api) -> None:
    factories.tenant("my_team-")
    provision("my_team-")
    space = KubernetesSettings.read(DriverSettings()).namespace("my_team-")
    assert re.fullmatch(rf"{prefix}my-team-[0-9a-f]{{10}}", space)
    found = api.get(f"/api/v1/namespaces/{space}")
    assert found["metadata"]["annotations"]["luthier.dev/tenant-slug"] == "my_team-"


def test_a_gang_of_a_tenant_that_is_not_provisioned_is_refused_with_the_remedy(red: str) -> None:
    cluster = driver.KubernetesCluster.connect(DriverSettings())
    try:
        with pytest.raises(LaunchRefused, match=r"not provisioned .* manage.py tenant_provision red$"):
            cluster.launch(launch("job-x-1", "runs"))
    finally:
        cluster.close()


@pytest.mark.parametrize("kind", ["services", "secrets", "pods"])
def test_a_launch_that_loses_its_permission_halfway_says_the_remedy(
    red: str, kind: str, any_cluster: AnyCluster, add_nodes: AddNodes, settings: Settings
) -> None:
    """As in a namespace that is being deleted: its Role may go first, between any two requests of a launch."""
    provision("red")
    admin = any_cluster.admin

    class Revoked(client.Api):
        def create(self, target: str, body: Object) -> Object:
            if target.endswith(f"/{kind}"):
                admin.delete(path("RoleBinding", red, "luthier"))
                wait_for(lambda: not allowed(admin, "create", kind, red), within_s=30, what="its effect")
            return super().create(target, body)

    settings.KUBE_RUNTIME_IMAGE = "test.invalid/{runtime}:1"
    read = KubernetesSettings.read(DriverSettings())
    gang = launch("job-x-1", "runs", nodes=add_nodes(fake.node(gpus=0, cpus=4)))
    with (
        closing(driver.KubernetesCluster(read, Revoked(read.kubeconfig))) as cluster,
        pytest.raises(LaunchRefused, match=r"not provisioned .* manage.py tenant_provision red$"),
    ):
        cluster.launch(gang)


def test_the_platform_reaches_no_secret_and_no_other_namespace(red: str, any_cluster: AnyCluster) -> None:
    provision("red")
    admin = any_cluster.admin
    assert allowed(admin, "create", "pods", red)
    assert not allowed(admin, "get", "secrets", red)
    assert not allowed(admin, "list", "secrets", red)
    assert not allowed(admin, "create", "pods", "kube-system")
    assert not allowed(admin, "get", "secrets", "kube-system")
    assert not allowed(admin, "create", "namespaces", "")


def allowed(admin: Api, verb: str, resource: str, namespace: str) -> bool:
    """Whether the platform's account may do it, in the API server's own view."""
    attributes = {"verb": verb, "resource": resource, "namespace": namespace}
    user = {"user": "system:serviceaccount:luthier:luthier", "resourceAttributes": attributes}
    review = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(admin.create(review, {"spec": user})["status"]["allowed"])


def test_more_pods_than_the_limits_allow_are_refused_by_the_cluster(red: str, api: Api) -> None:
    """Even those of an administrator: what holds if the platform counts wrong."""
    Quota.objects.filter(tenant__slug="red").update(limit=0)
    Quota.objects.filter(tenant__slug="red", gpu_type="h100").update(limit=1)
    provision("red")
    settings = KubernetesSettings.read(DriverSettings())
    made: list[Object] = []
    spec = launch("job-x-1", "runs")
    owner: dict[str, Any] = api.create(
        f"/api/v1/namespaces/{red}/services", manifests.service(spec, settings)
    )
    for number in range(2):
        pod = manifests.pod(spec, 0, settings, "test.invalid/program:1", manifests.owner(owner))
        pod["metadata"] |= {"name": f"p{number}", "finalizers": []}
        made.append(pod)
    api.create(f"/api/v1/namespaces/{red}/pods", made[0])
    with pytest.raises(ApiError, match="exceeded quota: luthier-jobs"):
        api.create(f"/api/v1/namespaces/{red}/pods", made[1])


def test_borrowing_and_opportunistic_gangs_start_and_one_beyond_the_quota_names_the_remedy(
    red: str, add_nodes: AddNodes, settings: Settings
) -> None:
    settings.KUBE_RUNTIME_IMAGE = "test.invalid/{runtime}:1"
    Quota.objects.filter(tenant__slug="red").exclude(gpu_type="cpu").delete()
    Tenant.objects.filter(slug="red").update(cohort="lab")
    factories.tenant("blue", quotas={"cpu": 3}, cohort="lab")
    provision("red")
    gang = replace(launch("job-x-1", "runs", nodes=add_nodes(fake.node(gpus=0, cpus=32))), memory_mib=64)
    with closing(driver.KubernetesCluster.connect(DriverSettings())) as cluster:
        cluster.launch(replace(gang, slots=4))
        cluster.launch(replace(gang, name="job-y-1", slots=3))
        with pytest.raises(ProvisionOutdated) as refused:
            cluster.launch(replace(gang, name="job-z-1", slots=1))
        said = f"ResourceQuota luthier-jobs of namespace {red} has no room for requests.cpu, though"
        assert str(refused.value).startswith(said)
        assert str(refused.value).endswith("manage.py tenant_provision red")
        cluster.launch(replace(gang, name="job-z-1", slots=8, opportunistic=True))
        assert set(cluster.observe().gangs) == {"job-x-1", "job-y-1", "job-z-1"}
        [node] = add_nodes(fake.node(gpus=2))
        kind = next(each.slot_type for each in cluster.nodes() if each.name == node)
        [learner] = gang.learners
        of_gpus = replace(gang, name="job-g-1", slot_type=kind, learners=[replace(learner, node=node)])
        with pytest.raises(
            ProvisionOutdated, match=r"Quota luthier of .* no room for requests\.nvidia\.com/gpu"
        ):
            cluster.launch(replace(of_gpus, opportunistic=True))


def test_an_opportunistic_gang_before_its_class_is_there_names_the_remedy(
    red: str, prefix: str, any_cluster: AnyCluster, add_nodes: AddNodes, settings: Settings
) -> None:
    settings.KUBE_RUNTIME_IMAGE = "test.invalid/{runtime}:1"
    provision("red")
    any_cluster.admin.delete(f"{COLLECTIONS['PriorityClass']}/luthier-{prefix}opportunistic")
    gang = launch("job-x-1", "runs", nodes=add_nodes(fake.node(gpus=0, cpus=4)))
    with (
        closing(driver.KubernetesCluster.connect(DriverSettings())) as cluster,
        pytest.raises(ProvisionOutdated, match=r"no PriorityClass .*manage\.py tenant_provision red$"),
    ):
        cluster.launch(replace(gang, opportunistic=True))


def test_a_launch_is_repeated_at_the_limit_and_one_refused_half_way_is_launched_later(
    red: str, api: Api, add_nodes: AddNodes, settings: Settings
) -> None:
    """A quota is asked before the API server sees that a pod exists."""
    settings.KUBE_RUNTIME_IMAGE = "test.invalid/{runtime}:1"
    Quota.objects.filter(tenant__slug="red").exclude(gpu_type="cpu").delete()
    provision("red")
    gang = launch("job-x-1", "runs", "runs", nodes=add_nodes(fake.node(gpus=0, cpus=32)))
    gang = replace(gang, memory_mib=64)

    def uids() -> set[str]:
        """Of pods that nothing ends."""
        found = api.get(f"/api/v1/namespaces/{red}/pods")["items"]
        return {each["metadata"]["uid"] for each in found if "deletionTimestamp" not in each["metadata"]}

    with closing(driver.KubernetesCluster.connect(DriverSettings())) as cluster:
        cluster.launch(replace(gang, slots=2))
        made = uids()
        cluster.launch(replace(gang, slots=2))
        assert len(made) == 2
        assert uids() == made
        larger = replace(gang, name="job-y-1", slots=4)
        with pytest.raises(ProvisionOutdated):
            cluster.launch(larger)
        wait_for(lambda: cluster.remove("job-x-1") is Removal.GONE, within_s=30)
        with pytest.raises(GangBlocked):  # one of its two pods has room
            cluster.launch(larger)
        api.patch(path("ResourceQuota", red, JOBS_QUOTA), {"spec": {"hard": {"requests.cpu": "8"}}})
        wait_for(lambda: is_launched(cluster, larger), within_s=30)
        assert len(uids()) == 2


def is_launched(cluster: driver.KubernetesCluster, gang: GangSpec) -> bool:
    try:
        cluster.launch(gang)
    except GangBlocked:
        return False
    return True
