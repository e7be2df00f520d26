"""Topology by REST: what no rack could ever hold is refused at once, a dry run says what is waited for."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.models import ClusterNode, Job, Runtime
from portal.api.examples import SPEC
from tenants.models import Quota
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api


@pytest.fixture(autouse=True)
def cluster(people: People) -> None:
    for name, rack in (("node-a", "r1"), ("node-b", "r1"), ("node-c", "r2")):
        ClusterNode.objects.create(
            name=name, cluster="memory", slot_type="cpu", slots=4, rack=rack, block="b1", others_slots=2
        )
    Runtime.objects.create(slug="sklearn", title="scikit-learn")
    Quota.objects.filter(tenant=people.vision).update(limit=100)


def spec(learners: int, **topology: str) -> dict[str, Any]:
    return SPEC | {"resources": {"learners": learners, "cpus": 4}, "topology": topology}


def test_what_no_rack_could_ever_hold_is_refused_at_once_naming_field_and_remedy(alice: Api) -> None:
    [error] = alice.post("/tenants/vision-lab/jobs:validate", spec(3, required="rack")).json()["errors"]
    assert (error["path"], error["code"]) == ("topology.required", "exceeds_cluster")
    assert error["allowed"] == "at most 2 learners, block"
    assert alice.post("/tenants/vision-lab/jobs", spec(3, required="rack")).status_code == 400
    assert alice.post("/tenants/vision-lab/jobs", spec(2, required="rack")).status_code == 201
    assert alice.post("/tenants/vision-lab/jobs", spec(3, preferred="rack")).status_code == 201
    assert sorted(Job.objects.values_list("topology", flat=True)) == ["preferred rack", "required rack"]


def test_a_dry_run_names_the_level_and_the_rack_with_the_most_room(alice: Api) -> None:
    ClusterNode.objects.filter(name__in=["node-a", "node-c"]).update(others_slots=0)
    asked = spec(2, required="rack") | {"resources": {"learners": 2, "cpus": 3}}
    now = alice.post("/tenants/vision-lab/jobs:validate", asked).json()["now"]
    assert (now["code"], now["numbers"]["level"]) == ("TOPOLOGY_FRAGMENTED", "rack")
    assert "1 fits into rack r" in now["message"]
