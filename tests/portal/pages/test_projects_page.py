"""The page of a tenant's projects: what it shows, previews and applies, and who can do so."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client

from jobs.models import ClusterNode, Job
from jobs.states import State
from portal.pages.projects import PREVIEWS_A_MINUTE
from tenants.models import Project, ProjectChange, ProjectShare, Quota, Tenant, User
from tests import factories
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
PAGE = "/t/vision-lab/projects"


@pytest.fixture
def manager(lab: Tenant, dave: User, signed_in: SignIn) -> Client:
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=16)
    Quota.objects.update_or_create(tenant=lab, gpu_type="cpu", defaults={"limit": 8})
    return signed_in(dave)


def seen() -> str:
    rows: list[Any] = [[row.slug, "", {"weight": row.weight}] for row in Project.objects.all()]
    rows += [
        [share.project.slug, share.gpu_type, {"guarantee": share.guarantee, "limit": share.limit}]
        for share in ProjectShare.objects.all()
    ]
    return json.dumps(rows)


def send(client: Client, do: str = "apply", **fields: str) -> Any:
    data = {name.replace("__", ":"): value for name, value in fields.items()}
    return client.post(f"{PAGE}/change", {"seen": seen(), "reason": "A deadline", "do": do, **data})


def test_a_project_is_made_previewed_first_and_undone(manager: Client) -> None:
    new = {"new": "vision", "guarantee:+:cpu": "4", "limit:+:cpu": "6", "weight:+:": "2"}
    shown = send(manager, "preview", **new)
    assert shown.status_code == 200
    text = shown.content.decode()
    assert "Changes, not applied" in text
    assert "guarantee 0 → 4, limit none → 6" in text
    assert "No job starts or waits because of it." in text
    assert not Project.objects.exists()
    assert send(manager, **new).status_code == 302
    share = ProjectShare.objects.get()
    assert (share.project.slug, share.project.weight, share.guarantee, share.limit) == ("vision", 2, 4, 6)
    text = manager.get(PAGE).content.decode()
    assert 'name="guarantee:vision:cpu" value="4"' in text
    assert "A deadline" in text
    change_set = ProjectChange.objects.latest("pk").change_set
    assert manager.post(f"{PAGE}/undo", {"change_set": str(change_set)}).status_code == 302
    assert not Project.objects.exists()
    assert manager.post(f"{PAGE}/undo", {"change_set": "x"}).status_code == 404


def test_previews_have_a_budget_and_changes_do_not(manager: Client) -> None:
    new = {"new": "vision", "weight:+:": "2"}
    for _ in range(PREVIEWS_A_MINUTE):
        assert "Changes, not applied" in send(manager, "preview", **new).content.decode()
    text = send(manager, "preview", **new).content.decode()
    assert "More than 30 previews within a minute. Try again in a minute." in text
    assert "Changes, not applied" not in text
    assert send(manager, **new).status_code == 302


def test_what_is_wrong_is_named_and_what_was_typed_stays(manager: Client) -> None:
    answer = send(manager, **{"new": "vision", "guarantee:+:cpu": "9"})
    assert answer.status_code == 422
    text = answer.content.decode()
    assert "vision cpu, guarantee: the tenant&#x27;s projects would be guaranteed 9 cpu together" in text
    assert 'name="guarantee:+:cpu" value="9"' in text
    both = send(manager, **{"new": "vision", "limit:+:cpu": "many", "weight:+:": "-1"}).content.decode()
    assert "vision cpu, limit: enter a whole number." in both
    assert "vision, weight: enter a whole number." in both
    bad_name = send(manager, **{"new": "Vision Lab", "limit:+:cpu": "2", "weight:+:": "2"}).content.decode()
    assert bad_name.count("Vision Lab, project: ") == 1
    for fields in (
        {"new": "vision", "limit:+:cpu": "many"},
        {"new": "Vision Lab"},
        {"new": "vision", "reason": ""},
        {"new": "vision", "seen": "{"},
        {"new": "vision", "seen": "[[1]]"},
        {"new": "vision", "seen": '[["vision", "", {"weight": Infinity}]]'},
        {"new": "vision", "seen": '[["vision", "", {"color": 1}]]', "remove:vision": "yes"},
        {},
    ):
        assert send(manager, **fields).status_code == 422, fields
    assert not Project.objects.exists()


def test_a_change_over_one_that_was_made_meanwhile_is_refused(manager: Client, lab: Tenant) -> None:
    row = Project.objects.create(tenant=lab, slug="vision")
    before = seen()
    Project.objects.update(weight=3)
    answer = send(manager, **{"weight:vision:": "2", "seen": before})
    assert answer.status_code == 422
    assert "vision, weight: it is 3" in answer.content.decode()
    assert send(manager, **{"weight:vision:": "3", "remove:vision": "yes"}).status_code == 302
    assert not Project.objects.filter(pk=row.pk).exists()


def test_members_see_the_projects_without_a_form(lab: Tenant, alice: User, signed_in: SignIn) -> None:
    Project.objects.create(tenant=lab, slug="vision")
    client = signed_in(alice)
    text = client.get(PAGE).content.decode()
    assert "vision" in text
    assert "projects/change" not in text
    assert client.post(f"{PAGE}/change", {"seen": "[]", "new": "x"}).status_code == 403


def test_the_list_of_jobs_shows_and_filters_by_project(manager: Client, lab: Tenant, alice: User) -> None:
    named, other = (factories.job(of=lab, owner=alice) for _ in range(2))
    Job.objects.filter(pk=named.pk).update(project="vision")
    text = manager.get("/t/vision-lab/jobs?project=vision").content.decode()
    assert f'id="job-{named.pk}"' in text
    assert f'id="job-{other.pk}"' not in text
    assert '<option value="vision" selected>' in text
    assert "?project=vision" in manager.get(f"/t/vision-lab/jobs/{named.pk}").content.decode()


def rows_of(page: str, part: str) -> list[list[str]]:
    """The text of each row of the table of a section."""
    section = page.partition(f'aria-labelledby="{part}"')[2].partition("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", section.partition("<tbody>")[2], re.DOTALL)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in rows]
    return [[" ".join(re.sub(r"<[^>]*>", "", cell).split()) for cell in row] for row in cells]


def test_the_consoles_quotas_show_the_projects_of_each_tenant_with_a_link(
    manager: Client, lab: Tenant, admin: User, signed_in: SignIn
) -> None:
    client = signed_in(admin)
    page = client.get("/admin-console/quotas")
    assert "No tenant has projects" in page.content.decode()
    other = factories.tenant("speech-lab", name="Speech Lab", quotas={"cpu": 4})
    for of, name, shares in (
        (lab, "vision", [("cpu", 2, 6)]),
        (lab, "idle", []),
        (other, "vision", [("cpu", 0, None)]),
    ):
        project = Project.objects.create(tenant=of, slug=name, weight=2 if of == lab else 1)
        for kind, guarantee, limit in shares:
            ProjectShare.objects.create(project=project, gpu_type=kind, guarantee=guarantee, limit=limit)
    factories.job(of=lab, project="vision", slots=3, state=State.PROCESSING)
    factories.job(of=other, project="vision", slots=1, state=State.PROCESSING)
    factories.job(of=other, slots=1, state=State.PROCESSING)
    text = client.get("/admin-console/quotas").content.decode()
    assert rows_of(text, "projects") == [
        [other.name, "vision", "1", "cpu", "0", "none", "1"],
        [lab.name, "idle", "2", "any", "0", "none", "0"],
        [lab.name, "vision", "2", "cpu", "2", "6", "3"],
    ]
    assert '<a href="/t/vision-lab/projects">' in text


def test_a_form_that_claims_to_have_seen_any_number_of_projects_is_refused_as_one(manager: Client) -> None:
    """While it is checked, quotas and projects of all tenants wait."""
    made_up = json.dumps([[f"p{n}", "", {"weight": 2}] for n in range(501)])
    answer = send(manager, seen=made_up)
    assert answer.status_code == 422
    assert answer.context["draft"].problems == ["Changes: must be at most 500 in one set."]
