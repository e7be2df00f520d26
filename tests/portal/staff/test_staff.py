"""/staff/ is for platform admins; what may not be changed by hand cannot be, and the last admin stays one."""

from __future__ import annotations

import re

from django.test import Client
from django.urls import reverse

from jobs.models import Job
from portal.staff import ReadOnly, site
from tenants.models import User
from tests import factories
from tests.jobs.conftest import People, people
from tests.markup import markup
from tests.platform import ROOT

__all__ = ["people"]

ADDRESSES = ["admin:index"] + [
    f"admin:{model._meta.app_label}_{model._meta.model_name}_{view}"
    for model, page in site._registry.items()
    for view in ("changelist", "add")
]


def signed_in(user: User | None) -> Client:
    client = Client()
    if user:
        client.force_login(user)
    return client


def test_only_a_platform_admin_finds_anything(people: People) -> None:
    strangers = [signed_in(user) for user in (people.alice, people.dave, people.bob)]
    for path in [*map(reverse, ADDRESSES), "/staff/no-such-page/"]:
        asked = signed_in(None).get(path)
        assert asked.status_code in (302, 404), path
        assert asked.status_code == 404 or "login" in asked["Location"], path
        assert {stranger.get(path).status_code for stranger in strangers} == {404}, path


def test_a_platform_admin_sees_every_list(people: People) -> None:
    factories.job(owner=people.alice)
    admin = signed_in(people.admin)
    for address in ADDRESSES:
        if not address.endswith("_add"):
            assert admin.get(reverse(address)).status_code == 200, address


def test_it_has_the_portal_s_colors_and_font_and_a_way_back(people: People) -> None:
    page = markup(signed_in(people.admin).get("/staff/"))
    light, dark = (ROOT / "static/src/css/tokens.css").read_text().split('[data-theme="dark"]')
    for weight, scheme, token in ((600, light, "accent"), (400, dark, "accent"), (200, light, "border")):
        found = re.search(rf"--{token}: (#[0-9a-f]{{6}});", scheme)
        assert found
        red, green, blue = bytes.fromhex(found.group(1)[1:])
        assert f"{weight}: rgb({red}, {green}, {blue});" in page
    assert "dist/staff" in page
    assert 'href="/admin-console/"' in page
    assert "Database admin · Luthier" in page


def test_what_has_its_own_page_is_not_changed_here(people: People) -> None:
    admin = signed_in(people.admin)
    for model, page in site._registry.items():
        if isinstance(page, ReadOnly):
            path = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_add")
            assert admin.get(path).status_code == 403, path


def test_a_job_s_state_is_read_only(people: People) -> None:
    job = factories.job(owner=people.alice)
    path = reverse("admin:jobs_job_change", args=[job.pk])
    assert signed_in(people.admin).get(path).status_code == 200
    assert signed_in(people.admin).post(path, {"state": "COMPLETED"}).status_code == 403
    assert Job.objects.get(pk=job.pk).state == "QUEUED"


def test_the_last_platform_admin_stays_one(people: People) -> None:
    path = reverse("admin:tenants_user_change", args=[people.admin.pk])
    answer = signed_in(people.admin).post(path, {"username": "admin", "is_active": "on"})
    assert answer.status_code == 200
    assert "last platform admin" in markup(answer)
    people.admin.refresh_from_db()
    assert people.admin.is_superuser


def test_a_person_is_added_without_any_rights(people: People) -> None:
    secret = "a long enough pass phrase 7"
    body = {"username": "fred", "password1": secret, "password2": secret, "usable_password": "true"}
    answer = signed_in(people.admin).post(reverse("admin:tenants_user_add"), body)
    assert answer.status_code == 302, markup(answer)[:3000]
    fred = User.objects.get(username="fred")
    assert not fred.is_superuser
    assert not fred.is_staff
    assert fred.check_password(secret)


def test_a_user_cannot_be_deleted(people: People) -> None:
    path = reverse("admin:tenants_user_delete", args=[people.alice.pk])
    assert signed_in(people.admin).post(path, {"post": "yes"}).status_code == 403
    assert User.objects.filter(pk=people.alice.pk).exists()
