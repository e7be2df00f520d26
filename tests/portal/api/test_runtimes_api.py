"""Runtimes by REST, on the page and at the shell: for platform admins, at once, with every fault named."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from jobs.models import Job, Runtime
from jobs.services import job_submit
from tenants.models import AuditEntry
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

pytestmark = pytest.mark.django_db
OWN = {"slug": "vision", "title": "Vision", "requirements": ["timm>=1"], "python": "3.12"}


@pytest.fixture(autouse=True)
def _built_in(db: None) -> None:
    Runtime.objects.get_or_create(slug="sklearn", defaults={"title": "scikit-learn"})


@pytest.fixture
def admin(people: People) -> Api:
    return Api(people.admin)


def wrong(answer: object) -> dict[str, str]:
    return {each["path"]: each["code"] for each in answer.json()["errors"]}  # type: ignore[attr-defined]


def test_a_runtime_that_an_admin_adds_can_be_used_at_once(admin: Api, people: People) -> None:
    made = admin.post("/runtimes", OWN)
    assert (made.status_code, made.headers["Location"]) == (201, "/api/v1/runtimes/vision")
    assert made.json() == {
        **OWN,
        "description": "",
        "image": "",
        "enabled": True,
        "etag": made.headers["ETag"],
    }
    listed = {each["slug"]: each for each in Api(people.carol).get("/runtimes").json()["items"]}
    assert listed["vision"]["requirements"] == ["timm>=1"]
    assert listed["sklearn"]["requirements"] is None
    job = job_submit(user=people.alice, tenant=people.vision, source=factories.spec(framework="vision"))
    assert job.framework == "vision"
    assert AuditEntry.objects.get(action="runtime.create").target == "vision"
    assert admin.post("/runtimes", OWN).status_code == 409


def test_everything_wrong_with_a_runtime_is_named_at_once(admin: Api) -> None:
    answer = admin.post(
        "/runtimes", {"slug": "No_Slug", "title": "", "requirements": ["x", "-e ."], "python": "2.7"}
    )
    assert answer.status_code == 400
    assert wrong(answer).keys() == {"title", "slug", "requirements[1]", "python"}
    answer = admin.post(
        "/runtimes", {"slug": "No_Slug", "title": "x", "requirements": ["x", "-e ."], "python": "2.7"}
    )
    assert wrong(answer) == {
        "slug": "not_a_slug",
        "requirements[1]": "bad_requirement",
        "python": "not_a_choice",
    }
    assert wrong(admin.post("/runtimes", OWN | {"python": "3.13"})) == {"python": "python_not_found"}
    assert wrong(admin.post("/runtimes", OWN | {"image": "a:1"})) == {"image": "exactly_one"}
    assert not Runtime.objects.filter(slug="vision").exists()


def test_a_runtime_is_changed_disabled_and_removed_once_no_unfinished_job_uses_it(
    admin: Api, people: People
) -> None:
    admin.post("/runtimes", OWN)
    job = job_submit(user=people.alice, tenant=people.vision, source=factories.spec(framework="vision"))
    changed = admin("PATCH", "/runtimes/vision", {"requirements": ["timm==1.0"], "enabled": False})
    assert (changed.status_code, changed.json()["requirements"]) == (200, ["timm==1.0"])
    assert "vision" not in {each["slug"] for each in admin.get("/runtimes").json()["items"]}
    refused = admin("DELETE", "/runtimes/vision")
    assert (refused.status_code, refused.json()["code"]) == (409, "runtime_in_use")
    Job.objects.filter(pk=job.pk).update(state="CANCELED", settled=True)
    assert admin("DELETE", "/runtimes/vision").status_code == 204
    assert admin("DELETE", "/runtimes/vision").status_code == 404


def test_a_runtime_of_the_source_tree_can_be_disabled_only(admin: Api) -> None:
    for method, body in (("PATCH", {"requirements": ["x"]}), ("DELETE", None)):
        refused = admin(method, "/runtimes/sklearn", body)
        assert (refused.status_code, refused.json()["code"]) == (409, "runtime_of_tree")
    assert admin("PATCH", "/runtimes/sklearn", {"enabled": False}).status_code == 200


def test_only_platform_admins_change_runtimes(people: People) -> None:
    for person in (people.alice, people.dave):
        api = Api(person)
        assert api.post("/runtimes", OWN).status_code == 403
        assert api("PATCH", "/runtimes/sklearn", {"enabled": False}).status_code == 403
        assert api("DELETE", "/runtimes/sklearn").status_code == 403


def test_the_shell_adds_lists_and_removes_runtimes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs = tmp_path / "needs.txt"
    needs.write_text("# ours\ntqdm\n")
    call_command("runtime", "add", "own", "timm>=1", "-r", str(needs), "--python", "3.12")
    assert Runtime.objects.get(slug="own").requirements == ["timm>=1", "tqdm"]
    call_command("runtime", "list")
    assert "own                  timm>=1, tqdm on Python 3.12" in capsys.readouterr().out
    with pytest.raises(CommandError, match="own already exists"):
        call_command("runtime", "add", "own")
    needs.write_text("-e .\n")
    with pytest.raises(CommandError, match="line 1 is an option of pip"):
        call_command("runtime", "add", "other", "-r", str(needs))
    call_command("runtime", "remove", "own")
    assert not Runtime.objects.filter(slug="own").exists()
    with pytest.raises(CommandError, match="comes with the platform"):
        call_command("runtime", "remove", "sklearn")


def test_the_page_adds_a_runtime_and_keeps_what_was_typed_when_it_is_refused(people: People) -> None:
    client = Client()
    client.force_login(people.admin)
    typed = {"slug": "vision", "title": "", "requirements": "timm>=1\n./local\n", "python": "3.12"}
    refused = client.post("/admin-console/runtimes", typed)
    assert refused.status_code == 422
    assert "./local" in refused.content.decode()
    assert "is a path or an address" in refused.content.decode()
    done = client.post("/admin-console/runtimes", typed | {"requirements": "timm>=1\n\ntqdm"}, follow=True)
    assert "Runtime vision added. Jobs can use it now." in done.content.decode()
    assert Runtime.objects.get(slug="vision").requirements == ["timm>=1", "tqdm"]
    client.post("/admin-console/runtimes/vision", {"verb": "disable"})
    assert not Runtime.objects.get(slug="vision").enabled
    client.post("/admin-console/runtimes/vision", {"verb": "remove"})
    assert not Runtime.objects.filter(slug="vision").exists()


def test_a_runtime_changes_only_from_the_version_that_was_seen(admin: Api) -> None:
    seen = admin.post("/runtimes", OWN).json()["etag"]
    changed = admin.patch("/runtimes/vision", {"title": "Images"}, If_Match=seen)
    stale = admin.patch("/runtimes/vision", {"title": "Pictures"}, If_Match=seen)
    assert (changed.status_code, stale.status_code) == (200, 412)
    assert stale.headers["ETag"] == changed.json()["etag"] != seen
    assert Runtime.objects.get(slug="vision").title == "Images"
    assert admin.patch("/runtimes/vision", {"enabled": False}, If_Match="*").status_code == 200
