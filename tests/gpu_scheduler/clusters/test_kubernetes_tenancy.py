"""What a tenant gets on a Kubernetes cluster, as far as it takes no API server. The rest: tests/cluster."""

from __future__ import annotations

import string
from dataclasses import replace
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.clusters.base import DNS_LABEL
from gpu_scheduler.clusters.kubernetes import manifests, tenancy
from gpu_scheduler.clusters.kubernetes.peers import Peer, parse
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings, ProvisionSettings, label
from portal.health import diagnosis
from portal.management.commands.tenant_provision import _chosen
from tenants.models import Quota
from tests import factories
from tests.gpu_scheduler.clusters.harness import launch
from tests.gpu_scheduler.clusters.kubernetes_specs import OWNER, SETTINGS

PROVISION = ProvisionSettings(
    kubeconfig="/k",
    service_account=("luthier", "luthier"),
    ingest=(Peer(443, cidr="10.0.0.7/32"), Peer(8000, namespace="luthier", labels=(("app", "web"),))),
    dns=(Peer(53, namespace="kube-system"),),
)
GIVEN = {
    "KUBE_PROVISION_KUBECONFIG": "/admin",
    "KUBE_SERVICE_ACCOUNT": "platform/web",
    "KUBE_DNS_PEERS": "kube-system:53",
}


def content(kind: str, name: str = "luthier", **slots: int) -> manifests.Manifest:
    tenant = tenancy.TenantLimits("red", slots)
    found = tenancy.content(tenant, SETTINGS, PROVISION)
    return next(each for each in found if (each["kind"], each["metadata"]["name"]) == (kind, name))


def test_learners_reach_the_platform_and_dns_and_nothing_else() -> None:
    spec = content("NetworkPolicy", "learners")["spec"]
    assert "ingress" not in spec
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    named = [(to, port["port"]) for rule in spec["egress"] for to in rule["to"] for port in rule["ports"]]
    by_name = {"matchLabels": {"kubernetes.io/metadata.name": "luthier"}}
    dns = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
    assert named == [
        ({"ipBlock": {"cidr": "10.0.0.7/32"}}, 443),
        ({"namespaceSelector": by_name, "podSelector": {"matchLabels": {"app": "web"}}}, 8000),
        (dns, 53),
        (dns, 53),
    ]


def test_what_denies_everything_comes_before_any_permission() -> None:
    tenant = tenancy.TenantLimits("red", {})
    kinds = [each["kind"] for each in tenancy.content(tenant, SETTINGS, PROVISION)]
    assert kinds[0] == "NetworkPolicy"
    assert kinds[-1] == "RoleBinding"


def test_a_gangs_own_policy_selects_its_pods_only() -> None:
    spec = launch("job-x-1", "runs")
    made = manifests.policy(spec, SETTINGS, OWNER)["spec"]
    members = {"matchLabels": {manifests.INSTALLATION: "test", manifests.GANG: "job-x-1"}}
    assert made["podSelector"] == members
    assert made["ingress"] == [{"from": [{"podSelector": members}]}]
    assert made["egress"] == [{"to": [{"podSelector": members}]}]
    labels = manifests.pod(spec, 0, SETTINGS, "image", OWNER)["metadata"]["labels"]
    assert members["matchLabels"].items() <= labels.items()


def test_cpus_are_bounded_where_no_gpu_brings_more() -> None:
    name = tenancy.JOBS_QUOTA
    assert content("ResourceQuota", name, cpu=4)["spec"]["hard"]["requests.cpu"] == "4"
    assert "requests.cpu" not in content("ResourceQuota", name, cpu=4, h100=1)["spec"]["hard"]


def test_opportunistic_pods_have_a_class_of_their_own_and_count_in_no_limit() -> None:
    shared = tenancy.opportunistic_class(SETTINGS)
    assert (shared["value"], shared["preemptionPolicy"]) == (-1000, "Never")
    made = {
        opportunistic: manifests.pod(
            replace(launch("job-x-1", "runs"), opportunistic=opportunistic), 0, chosen, "image", OWNER
        )["spec"].get("priorityClassName")
        for opportunistic in (True, False)
        for chosen in [replace(SETTINGS, priority_class="training")]
    }
    assert made == {True: shared["metadata"]["name"], False: "training"}
    [others] = content("ResourceQuota", tenancy.JOBS_QUOTA, h100=2)["spec"]["scopeSelector"][
        "matchExpressions"
    ]
    assert (others["operator"], others["values"]) == ("NotIn", [made[True]])
    of_all_pods = content("ResourceQuota", h100=2)["spec"]
    assert "scopeSelector" not in of_all_pods
    assert "requests.nvidia.com/gpu" not in of_all_pods["hard"]
    without = content("ResourceQuota", cpu=2)["spec"]["hard"]
    assert without["requests.nvidia.com/gpu"] == "0", "no slots of that type, whatever the pod's class is"
    assert content("ResourceQuota")["spec"]["hard"]["pods"] == "0"


@pytest.mark.parametrize(
    ("borrowing", "lending", "most"), [(None, None, 11), (3, None, 5), (None, 4, 8), (9, 0, 4), (0, None, 2)]
)
def test_the_quota_has_room_for_what_the_cohort_lends(
    db: None, borrowing: int | None, lending: int | None, most: int
) -> None:
    """Of a tenant with a limit of 2; others of its cohort have 7 and 2, one of another cohort and one of none 50."""
    factories.tenant("red", quotas={"h100": 2, "cpu": 1}, cohort="lab")
    factories.tenant("blue", quotas={"h100": 7, "a100": 5}, cohort="lab")
    factories.tenant("green", quotas={"h100": 2}, cohort="lab")
    factories.tenant("violet", quotas={"h100": 50}, cohort="other")
    factories.tenant("white", quotas={"h100": 50})
    Quota.objects.filter(tenant__slug="red", gpu_type="h100").update(borrowing_limit=borrowing)
    Quota.objects.filter(tenant__slug="blue", gpu_type="h100").update(lending_limit=lending)
    [red, white] = _chosen(["red", "white"], everyone=False)
    assert red.slots == {"h100": most, "cpu": 1}
    assert white.slots == {"h100": 50}


@given(st.text(string.ascii_lowercase + string.digits + "-_", min_size=1, max_size=40))
def test_every_tenant_has_a_namespace_with_a_valid_name(slug: str) -> None:
    assert DNS_LABEL.fullmatch(SETTINGS.namespace(slug))
    pod = manifests.pod(replace(launch("job-x-1", "runs"), tenant=slug), 0, SETTINGS, "image", OWNER)
    assert DNS_LABEL.fullmatch(pod["metadata"]["labels"][manifests.TENANT])


def test_names_that_differ_in_what_a_namespace_cannot_have_stay_apart() -> None:
    assert label("vision-lab") == "vision-lab"
    assert len({label("vision_lab"), label("vision-lab"), label("vision-lab-"), label("vision__lab")}) == 4


def test_peers_are_addresses_or_pods() -> None:
    text = "10.0.0.0/8:443, luthier:8000,luthier/app.kubernetes.io/name=web:80,fd00::/8:443"
    assert parse(text) == (
        Peer(443, cidr="10.0.0.0/8"),
        Peer(8000, namespace="luthier"),
        Peer(80, namespace="luthier", labels=(("app.kubernetes.io/name", "web"),)),
        Peer(443, cidr="fd00::/8"),
    )


@pytest.mark.parametrize(
    "wrong", ["web.example:443", "10.0.0.7:443", "luthier", "luthier:0", "luthier:99999", ""]
)
def test_a_peer_that_is_neither_is_named(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"must be ADDRESS/BITS:PORT, NAMESPACE:PORT") as raised:
        parse(f"{wrong},10.0.0.0/8:443" if wrong else "")
    assert not wrong or str(raised.value).startswith(f"'{wrong}'")


def test_an_ingest_address_is_a_peer_and_a_host_is_not() -> None:
    def ingest(url: str) -> tuple[Peer, ...]:
        return ProvisionSettings.read({**GIVEN, "LUTHIER_INGEST_URL": url}).ingest

    assert ingest("ws://10.0.0.7:8000") == (Peer(8000, cidr="10.0.0.7/32"),)
    assert ingest("wss://10.0.0.7") == (Peer(443, cidr="10.0.0.7/32"),)
    with pytest.raises(ValueError, match="KUBE_INGEST_PEERS is not set"):
        ingest("wss://web.example")


def test_with_an_s3_store_the_peers_must_be_named() -> None:
    given = {**GIVEN, "LUTHIER_INGEST_URL": "ws://10.0.0.7:8000", "LUTHIER_BLOBS": "s3://bucket/prefix"}
    with pytest.raises(
        ValueError, match=r"^KUBE_INGEST_PEERS is not set: with LUTHIER_BLOBS=s3://… learners also"
    ):
        ProvisionSettings.read(given)
    named = ProvisionSettings.read({**given, "KUBE_INGEST_PEERS": "10.0.0.7/32:8000,10.0.0.9/32:9000"})
    assert named.ingest == (Peer(8000, cidr="10.0.0.7/32"), Peer(9000, cidr="10.0.0.9/32"))
    folder = ProvisionSettings.read({**given, "LUTHIER_BLOBS": "/data/blobs"})
    assert folder.ingest == (Peer(8000, cidr="10.0.0.7/32"),)


def test_the_doctor_names_the_peers_that_an_s3_store_needs(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis.blobs, "check", lambda: None)
    settings.LUTHIER_BLOBS, settings.KUBE_INGEST_PEERS = "s3://bucket/prefix", ""
    settings.LUTHIER_CLUSTER = "local"
    assert diagnosis.blob_store(()).ready
    settings.LUTHIER_CLUSTER = "kubernetes"
    assert "KUBE_INGEST_PEERS is not set" in diagnosis.blob_store(()).reason
    settings.KUBE_INGEST_PEERS = "10.0.0.9/32:9000"
    assert diagnosis.blob_store(()).ready


def test_the_settings_name_every_problem_at_once() -> None:
    with pytest.raises(
        ValueError, match=r"^KUBE_PROVISION_KUBECONFIG is not set.*\nKUBE_INGEST_PEERS is not"
    ):
        ProvisionSettings.read({})


def test_the_command_without_its_settings_names_them(db: None) -> None:
    factories.tenant("red")
    with pytest.raises(CommandError, match=r"KUBE_INSTALLATION is not set\nKUBE_PROVISION_KUBECONFIG is not"):
        call_command("tenant_provision", "red")


def test_the_command_names_every_tenant_that_does_not_exist(db: None) -> None:
    with pytest.raises(CommandError, match=r"No such tenants: blue, green\."):
        call_command("tenant_provision", "green", "blue")
    with pytest.raises(CommandError, match="Name the tenants, or use --all"):
        call_command("tenant_provision")
    with pytest.raises(CommandError, match="Name the tenants, or use --all"):
        call_command("tenant_provision", "red", "--all")


def test_the_gang_is_where_its_tenants_namespace_is() -> None:
    settings = KubernetesSettings("here", "agent", namespace_prefix="ml-")
    tenant = tenancy.TenantLimits("vision_lab", {})
    made = tenancy.namespace(tenant, settings)["metadata"]
    assert made["name"] == settings.namespace("vision_lab")
    assert made["annotations"] == {tenancy.SLUG: "vision_lab"}
