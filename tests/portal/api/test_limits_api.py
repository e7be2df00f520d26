"""Limits for one user and for one job by REST: set with a line of history, and a job that breaks one is refused."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.models import ClusterNode, Runtime
from portal.api.examples import SPEC
from tenants.models import AuditEntry, Quota
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

QUOTA = "/tenants/vision-lab/quotas/cpu"


@pytest.fixture(autouse=True)
def cluster(people: People) -> None:
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=16)
    Runtime.objects.create(slug="sklearn", title="scikit-learn")


def spec(resources: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return (
        {name: value for name, value in SPEC.items() if name != "time_limit"}
        | changes
        | {"resources": resources}
    )


def submitted(alice: Api, resources: dict[str, Any], **changes: Any) -> Any:
    return alice.post("/tenants/vision-lab/jobs", spec(resources, **changes))


def test_limits_are_set_with_the_quota_and_leave_a_line_of_history(admin: Api, alice: Api) -> None:
    made = admin.put(QUOTA, {"limit": 8, "reason": "r", "user_limit": 4, "gang_limit": 2}).json()
    assert (made["user_limit"], made["gang_limit"]) == (4, 2)
    line = alice.get("/tenants/vision-lab/quota-changes").json()["items"][0]
    assert line["terms"] == {"user_limit": [None, 4], "gang_limit": [None, 2]}
    admin.put(QUOTA, {"limit": 8, "reason": "r", "gang_limit": None})
    row = alice.get("/tenants/vision-lab/quotas").json()["items"][0]
    assert (row["user_limit"], row["gang_limit"]) == (4, None), "what is not sent stays"


def test_a_term_that_was_changed_meanwhile_is_not_overwritten(admin: Api, alice: Api) -> None:
    def etag() -> str:
        return str(alice.get("/tenants/vision-lab/quotas").json()["items"][0]["etag"])

    seen = etag()
    assert seen == '"limit-8"'
    assert admin.put(QUOTA, {"limit": 8, "reason": "r", "user_limit": 4}, If_Match=seen).status_code == 200
    again = admin.put(QUOTA, {"limit": 8, "reason": "r", "user_limit": 2}, If_Match=seen)
    assert (again.status_code, again["ETag"]) == (412, '"limit-8;user_limit-4"')
    assert admin.put(QUOTA, {"limit": 8, "reason": "r", "user_limit": 2}, If_Match=etag()).status_code == 200


def test_limits_of_the_tenant_are_set_with_the_etag_that_was_read_and_audited(admin: Api) -> None:
    etag = admin.get("/tenants/vision-lab").json()["etag"]
    sent = {"user_jobs_limit": 3, "max_time_s": 3600, "reason": "Fair use"}
    made = admin.patch("/tenants/vision-lab", sent, If_Match=etag)
    assert (made.status_code, made.json()["user_jobs_limit"], made.json()["max_time_s"]) == (200, 3, 3600)
    assert admin.patch("/tenants/vision-lab", sent, If_Match=etag).status_code == 412
    entry = AuditEntry.objects.filter(action="tenant.change").latest("pk")
    assert entry.details["max_time_s"] == {"from": None, "to": 3600}


def test_one_set_changes_limits_of_types_and_of_whole_tenants_or_nothing(admin: Api, people: People) -> None:
    whole = {"tenant": "vision-lab", "gpu_type": "", "user_jobs_limit": 3, "max_time_s": 60, "cohort": "labs"}
    of_cpus = {"tenant": "vision-lab", "gpu_type": "cpu", "limit": 5, "if_limit": 7}
    body = {"changes": [whole, of_cpus], "reason": "Fair use"}
    assert admin.post("/quota-changes", body).status_code == 409
    people.vision.refresh_from_db()
    assert (people.vision.cohort, people.vision.user_jobs_limit, people.vision.max_time_s) == ("", None, None)
    del of_cpus["if_limit"]
    made = admin.post("/quota-changes", body).json()
    assert made["changes"][0] | {"used": 0} == {
        "tenant": "vision-lab",
        "gpu_type": "",
        "old_limit": 0,
        "new_limit": 0,
        "used": 0,
        "terms": {"user_jobs_limit": [None, 3], "max_time_s": [None, 60], "cohort": ["", "labs"]},
    }
    people.vision.refresh_from_db()
    assert (people.vision.cohort, people.vision.user_jobs_limit, people.vision.max_time_s) == ("labs", 3, 60)
    history = admin.get("/tenants/vision-lab/quota-changes").json()["items"]
    assert {(line["gpu_type"], line["change_set"]) for line in history[:2]} == {
        ("", made["change_set"]),
        ("cpu", made["change_set"]),
    }


def test_what_is_set_for_a_type_and_for_the_whole_tenant_is_not_mixed(admin: Api) -> None:
    changes = [
        {"tenant": "vision-lab", "gpu_type": "", "limit": 3, "weight": 2, "user_jobs_limit": 0},
        {"tenant": "vision-lab", "gpu_type": "cpu", "cohort": "labs"},
    ]
    answer = admin.post("/quota-changes", {"changes": changes, "reason": "r"})
    assert answer.status_code == 400
    assert sorted((error["path"], error["code"]) for error in answer.json()["errors"]) == [
        ("changes[0].limit", "wrong_scope"),
        ("changes[0].user_jobs_limit", "min_value"),
        ("changes[0].weight", "wrong_scope"),
        ("changes[1].cohort", "wrong_scope"),
        ("changes[1].limit", "required"),
    ]


@pytest.mark.parametrize("name", ["user_limit", "gang_limit"])
def test_a_limit_of_none_at_all_is_no_limit_for_one(admin: Api, name: str) -> None:
    answer = admin.put(QUOTA, {"limit": 8, "reason": "r", name: 0})
    assert [error["path"] for error in answer.json()["errors"]] == [name]


def test_a_job_that_could_never_start_is_refused_with_all_that_is_wrong_and_the_remedy(
    admin: Api, alice: Api
) -> None:
    admin.put(QUOTA, {"limit": 8, "reason": "r", "user_limit": 3, "gang_limit": 2})
    admin.patch("/tenants/vision-lab", {"max_time_s": 7200, "reason": "r"})
    answer = submitted(alice, resources={"learners": 2, "cpus": 2}, time_limit="3h")
    assert answer.status_code == 400
    errors = {(error["path"], error["code"]): error for error in answer.json()["errors"]}
    assert set(errors) == {
        ("resources.learners", "exceeds_gang_limit"),
        ("resources.learners", "exceeds_user_limit"),
        ("time_limit", "exceeds_time_limit"),
    }
    assert errors["time_limit", "exceeds_time_limit"]["message"] == (
        "Jobs of this tenant need a time limit of 2h or less: set time_limit to 2h"
    )
    assert "can have 2 at once" in errors["resources.learners", "exceeds_gang_limit"]["message"]
    assert submitted(alice, resources={"cpus": 2}).status_code == 400, "without a time limit"
    assert submitted(alice, resources={"cpus": 2}, time_limit="2h").status_code == 201


def test_a_dry_run_counts_what_the_caller_holds(admin: Api, alice: Api, people: People) -> None:
    factories.job(owner=people.alice, state="PROCESSING", slots=2)
    Quota.objects.filter(tenant=people.vision).update(user_limit=3)
    verdict = alice.post("/tenants/vision-lab/jobs:validate", spec({"cpus": 2})).json()
    assert "alice uses 2 of 3 CPUs that one user can have" in str(verdict)
