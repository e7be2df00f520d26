"""Projects by REST: managers divide their tenant's quota, all or nothing, and jobs name a project."""

from __future__ import annotations

from typing import Any

import pytest

from jobs import wake
from jobs.models import ClusterNode, Job, JobEvent, Runtime
from jobs.selectors import what_if
from jobs.states import State
from portal.api.examples import SPEC
from portal.api.projects import CHANGE_SETS_A_MINUTE
from tenants.models import AuditEntry, Membership, Project, ProjectChange, ProjectShare, Quota
from tenants.services import projects
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

CHANGES = "/tenants/vision-lab/project-changes"
PROJECTS = "/tenants/vision-lab/projects"


@pytest.fixture(autouse=True)
def cluster(people: People) -> None:
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=16)
    Runtime.objects.create(slug="sklearn", title="scikit-learn")


def change(caller: Api, *changes: dict[str, Any], dry_run: bool = False, status: int = 200) -> Any:
    answer = caller.post(CHANGES, {"changes": list(changes), "reason": "A deadline", "dry_run": dry_run})
    assert answer.status_code == status, answer.content
    return answer.json()


def whole(project: str, weight: int | None = 1, **seen: Any) -> dict[str, Any]:
    return {"project": project, "gpu_type": "", "weight": weight, **seen}


def share(project: str, **terms: Any) -> dict[str, Any]:
    return {"project": project, "gpu_type": "cpu", **terms}


def wrong(answer: Any) -> list[tuple[str, str]]:
    return [(each["path"], each["code"]) for each in answer["errors"]]


def shown(caller: Api) -> list[Any]:
    return list(caller.get(PROJECTS).json()["items"])


@pytest.fixture
def manager(people: People, alice: Api) -> Api:
    Membership.objects.filter(user=people.alice).update(role="manager")
    return alice


def test_a_manager_makes_projects_in_one_set_with_history_and_an_audit_entry(manager: Api) -> None:
    tried = change(manager, whole("vision", 2), share("vision", guarantee=4, limit=6), dry_run=True)
    assert (tried["change_set"], tried["dry_run"], shown(manager)) == (None, True, [])
    made = change(manager, whole("vision", 2), share("vision", guarantee=4, limit=6))
    assert made["changes"] == [
        {"project": "vision", "gpu_type": "", "terms": {"weight": [None, 2]}},
        {"project": "vision", "gpu_type": "cpu", "terms": {"guarantee": [0, 4], "limit": [None, 6]}},
    ]
    assert shown(manager) == [
        {
            "slug": "vision",
            "weight": 2,
            "shares": [{"gpu_type": "cpu", "guarantee": 4, "limit": 6, "used": 0}],
        }
    ]
    lines = manager.get(CHANGES).json()["items"]
    assert [(line["gpu_type"], line["change_set"], line["actor"]) for line in lines] == [
        ("cpu", made["change_set"], "alice"),
        ("", made["change_set"], "alice"),
    ]
    assert AuditEntry.objects.get(action="project.change").details["vision cpu guarantee"] == {
        "from": 0,
        "to": 4,
    }
    assert change(manager, whole("vision", 2))["change_set"] is None, "nothing changes"


def test_guarantees_are_at_most_what_the_tenant_has_on_both_sides(manager: Api, admin: Api) -> None:
    Quota.objects.update(limit=8)
    change(manager, whole("vision"), whole("speech"), share("vision", guarantee=5))
    refused = change(manager, share("speech", guarantee=4), share("vision", limit=4), status=400)
    assert wrong(refused) == [
        ("changes[1].limit", "below_guarantee"),
        ("changes[0].guarantee", "exceeds_quota"),
    ]
    assert refused["errors"][1]["allowed"] == "at most 3"
    change(manager, share("speech", guarantee=3))
    lower = {"tenant": "vision-lab", "gpu_type": "cpu", "limit": 7}
    answer = admin.post("/quota-changes", {"changes": [lower], "reason": "r"})
    assert (answer.status_code, wrong(answer.json())) == (400, [("changes[0].limit", "below_guarantees")])
    assert Quota.objects.get(gpu_type="cpu", tenant__slug="vision-lab").limit == 8
    change(admin, share("speech", guarantee=2))  # a platform admin can, too
    assert admin.post("/quota-changes", {"changes": [lower], "reason": "r"}).status_code == 200


def test_all_errors_come_at_once_and_nothing_is_set(manager: Api) -> None:
    refused = change(
        manager,
        whole("vision"),
        share("speech", guarantee=1),
        share("vision", guarantee=1, limit=2),
        share("vision", guarantee=1),
        status=400,
    )
    assert wrong(refused) == [("changes[1].project", "project_not_found"), ("changes[3]", "repeated")]
    assert not Project.objects.exists()
    for each in (
        {**whole("vision"), "guarantee": 3},
        {**share("vision"), "weight": 3},
        {**share("vision"), "limit": 0},
        {**share("vision"), "guarantee": None},
        whole("vision", 1001),
        whole("Vision lab"),
        whole(""),
    ):
        change(manager, each, status=400)


def test_an_outdated_change_is_refused(manager: Api) -> None:
    change(manager, whole("vision", if_weight=None))
    answer = change(manager, whole("vision", 3, if_weight=2), status=409)
    assert wrong(answer) == [("changes[0].weight", "limit_changed")]
    change(manager, whole("vision", if_weight=None), status=409)


def test_a_set_is_undone_as_a_set_and_not_over_later_changes(manager: Api) -> None:
    first = change(manager, whole("vision", 2), share("vision", guarantee=4, limit=6))["change_set"]
    before = shown(manager)
    gone = change(manager, whole("vision", None))["change_set"]
    assert shown(manager) == []
    undone = manager.post(f"{CHANGES}/{gone}/undo", {"reason": "Too early"})
    assert (undone.status_code, shown(manager)) == (200, before)
    again = change(manager, share("vision", guarantee=3))["change_set"]
    assert manager.post(f"{CHANGES}/{first}/undo", {"reason": "r"}).status_code == 409
    assert manager.post(f"{CHANGES}/{again}/undo", {"reason": "r"}).status_code == 200
    assert shown(manager) == before
    for other in ("none", "0f1f7b3e-6a53-4b7a-9a0e-6b8a2b8a2f11"):
        assert manager.post(f"{CHANGES}/{other}/undo", {"reason": "r"}).status_code == 404


def test_only_managers_and_admins_change_and_members_see(people: People, alice: Api) -> None:
    change(alice, whole("vision"), status=403)
    other = factories.tenant("other-lab")
    Project.objects.create(tenant=other, slug="secret")
    assert shown(alice) == []
    assert alice.get("/tenants/other-lab/projects").status_code == 404
    body = {"changes": [whole("x")], "reason": "r"}
    assert alice.post("/tenants/other-lab/project-changes", body).status_code == 404


def test_an_undo_removes_no_project_that_has_been_given_more_since(manager: Api) -> None:
    made = change(manager, whole("vision"), share("vision", guarantee=1))["change_set"]
    change(manager, share("vision", limit=3))
    before = shown(manager)
    refused = manager.post(f"{CHANGES}/{made}/undo", {"reason": "r"})
    assert refused.status_code == 409
    assert "vision has since been given other shares of cpu" in str(refused.json())
    assert shown(manager) == before
    change(manager, share("vision", limit=None))
    assert manager.post(f"{CHANGES}/{made}/undo", {"reason": "r"}).status_code == 200
    assert shown(manager) == []


def test_another_tenants_set_is_not_undone(manager: Api, people: People) -> None:
    other = factories.tenant("other-lab")
    row = ProjectChange.objects.create(
        tenant=other,
        project="x",
        gpu_type="",
        terms={"weight": [None, 1]},
        reason="r",
        change_set="0f1f7b3e-6a53-4b7a-9a0e-6b8a2b8a2f11",
    )
    assert manager.post(f"{CHANGES}/{row.change_set}/undo", {"reason": "r"}).status_code == 404


def submitted(caller: Api, **fields: Any) -> Any:
    return caller.post("/tenants/vision-lab/jobs", {**SPEC, **fields})


def test_a_job_names_its_project_or_is_in_the_default_one(manager: Api) -> None:
    assert submitted(manager).json()["project"] == ""
    change(manager, whole("vision"), whole("default"))
    named = submitted(manager, project="vision").json()
    assert (named["project"], named["spec"]["project"]) == ("vision", "vision")
    plain = submitted(manager).json()
    assert (plain["project"], "project" in plain["spec"]) == ("default", False)
    found = manager.get("/jobs?tenant=vision-lab&project=vision").json()["items"]
    assert [job["id"] for job in found] == [named["id"]]
    copy = manager.post(f"/jobs/{named['id']}/clone", {}).json()
    assert Job.objects.get(pk=copy["id"]).project == "vision"


def test_a_project_that_the_tenant_does_not_have_is_an_error_of_the_field(manager: Api) -> None:
    change(manager, whole("vision"))
    answer = submitted(manager, project="vison")
    assert answer.status_code == 400
    error = answer.json()["errors"][0]
    assert (error["path"], error["code"]) == ("project", "project_not_found")
    assert error["message"] == "This tenant has no project vison. Did you mean vision?"
    assert submitted(manager, project="Vision Lab").status_code == 400


def test_a_preview_says_what_starts_because_of_the_change(manager: Api) -> None:
    change(manager, whole("vision"))
    job = submitted(manager, project="vision", resources={"cpus": 2, "memory": "1Gi"}).json()
    change(manager, share("vision", limit=1))
    would = change(manager, share("vision", limit=4), dry_run=True)
    assert [each["job"] for each in would["effects"]["starts"]] == [job["id"]]
    would = change(manager, whole("vision", 2), dry_run=True)
    assert would["effects"] == {"over": [], "starts": [], "waits": []}


def test_a_job_that_its_project_could_never_have_is_refused_with_the_limit_and_the_remedy(
    manager: Api,
) -> None:
    change(manager, whole("vision"), whole("speech"), whole("default"))
    change(manager, share("vision", limit=3), share("default", limit=1))
    large = {"resources": {"learners": 2, "cpus": 2, "memory": "1Gi"}}
    answer = submitted(manager, project="vision", **large)
    assert answer.status_code == 400
    (error,) = answer.json()["errors"]
    assert (error["path"], error["code"], error["got"], error["allowed"]) == (
        "resources.learners",
        "exceeds_project_limit",
        "4",
        "at most 3",
    )
    assert error["message"] == (
        "requests 4 CPUs in all; project vision of this tenant can have 3 at once. Request fewer, name another project,"
        " or ask a manager of the tenant to raise the project's limit"
    )
    checked = manager.post("/tenants/vision-lab/jobs:validate", {**SPEC, "project": "vision", **large}).json()
    assert (checked["valid"], wrong(checked)) == (False, [("resources.learners", "exceeds_project_limit")])
    assert {each["name"]: each["result"] for each in checked["checks"]}["quota"] == "failed"
    assert wrong(submitted(manager, **large).json()) == [("resources.learners", "exceeds_project_limit")], (
        "it is in the default project"
    )
    accepted = submitted(manager, project="speech", **large)
    assert accepted.status_code == 201, "that has no limit"
    path = f"/jobs/{accepted.json()['id']}/clone"
    change(manager, share("speech", limit=3))
    assert wrong(manager.post(path, {}).json()) == [("resources.learners", "exceeds_project_limit")]
    elastic = {"resources": {"learners": {"min": 1, "max": 2}, "cpus": 2, "memory": "1Gi"}}
    assert submitted(manager, project="vision", **elastic).status_code == 201, "the fewest fit"


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The snapshots that were planned."""
    seen: list[Any] = []
    plan = what_if.plan

    def counted(snapshot: Any) -> Any:
        seen.append(snapshot)
        return plan(snapshot)

    monkeypatch.setattr(what_if, "plan", counted)
    return seen


def test_a_set_is_planned_only_where_it_changes_something_for_jobs_that_wait(
    manager: Api, people: People, planned: list[Any]
) -> None:
    change(manager, share("no-such-project", limit=2), status=400)
    factories.job(owner=people.bob)
    change(manager, whole("vision"), share("vision", limit=2))
    assert planned == [], "the job that waits is another tenant's"
    factories.job(owner=people.alice, project="vision")
    change(manager, whole("vision"))
    assert planned == [], "nothing changed"
    would = change(manager, share("vision", limit=4), dry_run=True)
    before, after = planned
    assert before.now == after.now, "of one snapshot"
    assert before.waiting is after.waiting
    assert would["effects"]["starts"] == []


def test_both_plans_are_made_before_the_lock_under_which_a_set_is_applied(
    manager: Api, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request with an Idempotency-Key holds the lock of all quotas until its answer."""
    order: list[str] = []
    lock, plan = projects._lock, what_if.plan
    monkeypatch.setattr(projects, "_lock", lambda: (order.append("lock"), lock())[1])
    monkeypatch.setattr(what_if, "plan", lambda snapshot: (order.append("plan"), plan(snapshot))[1])
    factories.job(owner=people.alice)
    body = {"changes": [whole("vision")], "reason": "r"}
    made = manager.post(CHANGES, body, Idempotency_Key="k1")
    assert (made.status_code, order) == (200, ["lock", "plan", "plan", "lock"])
    order.clear()
    assert manager.post(CHANGES, body, Idempotency_Key="k1").json() == made.json()
    assert order == [], "a repeat is not tried again"
    undone = manager.post(
        f"{CHANGES}/{made.json()['change_set']}/undo", {"reason": "r"}, Idempotency_Key="k2"
    )
    assert (undone.status_code, order) == (200, ["lock", "lock", "plan", "plan", "lock", "lock"])


def test_change_sets_have_a_budget_per_user(manager: Api, admin: Api, planned: list[Any]) -> None:
    for _ in range(CHANGE_SETS_A_MINUTE):
        change(manager, whole("vision"), dry_run=True)
    held = manager.post(CHANGES, {"changes": [whole("vision")], "reason": "A deadline"})
    assert (held.status_code, held["Retry-After"], held.json()["code"]) == (429, "60", "too_many_requests")
    assert not Project.objects.exists()
    made = change(admin, whole("vision"))
    path = f"{CHANGES}/{made['change_set']}/undo"
    for _ in range(CHANGE_SETS_A_MINUTE):
        assert manager.post(path, {"reason": "Back", "dry_run": True}).status_code == 200
    assert manager.post(path, {"reason": "Back"}).status_code == 429


def events_of(job: Job) -> list[tuple[str, dict[str, Any], int]]:
    found = JobEvent.objects.filter(job=job, code="QUOTA_CHANGED").order_by("n")
    return [(event.message, event.numbers, event.n) for event in found]


def test_a_job_that_waits_in_a_changed_project_gets_an_event(
    manager: Api, admin: Api, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(wake, "cycle", lambda: asked.append(True))
    waits = factories.job(owner=people.alice, project="vision")
    on_gpus = factories.job(owner=people.alice, gpus=1, project="vision")
    beside = [
        factories.job(owner=people.alice, project="speech"),
        factories.job(owner=people.alice),
        factories.job(owner=people.alice, project="vision", state=State.PROCESSING),
        factories.job(owner=people.alice, project="vision", state=State.HALTED, intent="HALT"),
        factories.job(owner=people.bob, project="vision"),
    ]
    change(manager, whole("vision", 2), share("vision", guarantee=2, limit=6), dry_run=True)
    assert (events_of(waits), asked) == ([], [])
    made = change(manager, whole("vision", 2), share("vision", guarantee=2, limit=6))
    assert len(asked) == 1, "the next plan explains it"
    added = {"project": "vision", "gpu_type": "", "terms": {"weight": [None, 2]}}
    shared = {"project": "vision", "gpu_type": "cpu", "terms": {"guarantee": [0, 2], "limit": [None, 6]}}
    assert events_of(waits) == [
        (
            "Project vision: added and guarantee of cpu changed from 0 to 2 and limit of cpu changed from no limit"
            " to 6, by alice: A deadline",
            {"changes": [added, shared]},
            2,
        ),
    ]
    waits.refresh_from_db()
    assert waits.event_seq == 2
    assert [numbers for _, numbers, _ in events_of(on_gpus)] == [{**added, "changes": [added]}], (
        "not of its type"
    )
    assert [events_of(job) for job in beside] == [[]] * 5
    change(manager, whole("vision", 2))
    assert (len(events_of(waits)), len(asked)) == (1, 1), "nothing changed"
    admin.post(f"{CHANGES}/{made['change_set']}/undo", {"reason": "Back"})
    assert [message for message, _, _ in events_of(waits)][1:] == [
        "Project vision: removed and guarantee of cpu changed from 2 to 0 and limit of cpu changed from 6 to no limit,"
        " by admin: Back",
    ]
    assert len(asked) == 2


def test_a_manager_makes_shares_only_of_types_that_the_tenant_was_given(manager: Api) -> None:
    """Every plan of the installation reads all shares: of names that one makes up there would be any number."""
    change(manager, whole("vision"))
    made_up = [{"project": "vision", "gpu_type": f"x{n}", "limit": 1} for n in range(3)]
    answer = change(manager, *made_up, status=400)
    assert wrong(answer) == [(f"changes[{n}].gpu_type", "type_not_found") for n in range(3)]
    assert answer["errors"][0]["allowed"] == ["cpu"]
    assert not ProjectShare.objects.exists()
    change(manager, share("vision", limit=3))
    Quota.objects.filter(tenant__slug="vision-lab").delete()
    change(manager, share("vision", limit=2))


def test_a_set_that_had_more_effects_than_a_set_can_have_changes_is_undone(
    manager: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(manager, whole("vision", 2), share("vision", limit=3))
    before = shown(manager)
    monkeypatch.setattr(projects, "MAX_CHANGES", 1)
    assert wrong(change(manager, whole("a"), whole("b"), status=400)) == [("changes", "too_many")]
    removed = change(manager, whole("vision", None))
    assert len(removed["changes"]) == 2
    undone = manager.post(f"{CHANGES}/{removed['change_set']}/undo", {"reason": "Too early"})
    assert (undone.status_code, shown(manager)) == (200, before)
