"""Every page and form of the portal, knocked at by everybody: in, to the login, or the page of a missing thing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.db import transaction
from django.http import HttpResponse
from django.test import Client, override_settings
from guardian.models import UserObjectPermission

from jobs.models import Attempt, Dismissal, Job, Runtime
from portal.settings.env import Environment
from portal.settings.single_sign_on import providers
from tenants.models import (
    AuditEntry,
    GroupMapping,
    Membership,
    Project,
    Quota,
    SavedView,
    Secret,
    Tenant,
    Token,
    User,
)
from tests.architecture import rows
from tests.architecture.routes import Route, page_routes
from tests.architecture.rows import IN, Page
from tests.architecture.world import ISSUER, LEARNERS, MISSING, Who, World, build

ROUTES = {route.text: route for route in page_routes()}
CELLS = [(name, page) for name, pages in sorted(rows.PAGES.items()) for page in pages]


pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    """One world for all cells: every knock undoes what it changed."""
    known = providers(Environment(luthier_oidc_issuer=ISSUER, luthier_oidc_client_id="luthier"))
    single_sign_on = override_settings(LUTHIER_OIDC_ISSUER=ISSUER, SOCIALACCOUNT_PROVIDERS=known)
    with django_db_blocker.unblock(), transaction.atomic(), single_sign_on:
        yield build()
        transaction.set_rollback(True)


def test_every_page_has_a_row_and_every_row_a_page() -> None:
    assert set(ROUTES) - set(rows.PAGES) == set(), "pages without a row in tests/architecture/rows.py"
    assert set(rows.PAGES) - set(ROUTES) == set(), "rows without a page"


@pytest.mark.parametrize(("name", "page"), CELLS, ids=[name for name, _ in CELLS])
def test_a_page_lets_in_whom_its_row_names(world: World, name: str, page: Page) -> None:
    faults = {who: _fault(world, who, ROUTES[name], page) for who in Who}
    found = [f"{who}: {fault}" for who, fault in faults.items() if fault]
    assert not found, "\n".join([name, *found])


@pytest.mark.parametrize(
    "name", sorted(name for name in rows.PAGES if "job_id" in name and "verb" not in name)
)
def test_a_job_s_page_read_by_an_admin_is_recorded(world: World, name: str) -> None:
    page = rows.PAGES[name][0]
    with transaction.atomic():
        client = Client()
        client.force_login(world.users[Who.ADMIN])
        client.get(ROUTES[name].path(_values(world, page)))
        read = AuditEntry.objects.filter(actor=world.users[Who.ADMIN], target=world.things["job_id"])
        recorded = read.exists()
        transaction.set_rollback(True)
    assert recorded


@pytest.mark.parametrize("path", ["", "jobs", "usage"])
def test_a_tenant_s_page_read_by_an_admin_is_recorded(world: World, path: str) -> None:
    with transaction.atomic():
        client = Client()
        client.force_login(world.users[Who.ADMIN])
        client.get(f"/t/{world.tenant.slug}/{path}?access_reason=asked+by+alice")
        entry = AuditEntry.objects.get(actor=world.users[Who.ADMIN])
        transaction.set_rollback(True)
    assert (entry.tenant, entry.action, entry.reason) == (world.tenant, "tenant.read", "asked by alice")


def _fault(world: World, who: Who, route: Route, page: Page) -> str:
    """What is wrong with the answer this person gets; empty when nothing is."""
    answer, changed = _knock(world, who, route.path(_values(world, page)), page)
    status, wanted = answer.status_code, page.let_in[who]
    if status >= 500 and route.text != "readyz":
        return f"{status}"
    if page.own_token:
        return "" if status in (401, 404) else f"let in with {status}"
    if page.for_learners:
        return "" if who in LEARNERS or status in (401, 403, 404, 405) else f"let in with {status}"
    if page.open_to_all:
        return "" if status < 400 or status == 503 else f"turned away with {status}"
    if changed != (page.changes and wanted == IN):
        return f"changed {'something' if changed else 'nothing'}, with {status}"
    if wanted == 401:
        to_login = status == 302 and answer["Location"].startswith("/login")
        return "" if to_login else f"{status} instead of the login"
    if wanted == 404:
        return _unlike_missing(world, who, route, page, answer)
    if wanted == IN and not page.post:
        return "" if status < 400 else f"turned away with {status}"
    return "" if page.post or status in (403, 404) else f"let in with {status}"


def _unlike_missing(world: World, who: Who, route: Route, page: Page, answer: HttpResponse) -> str:
    if answer.status_code != 404:
        return f"{answer.status_code} instead of 404"
    missing, _ = _knock(world, who, _nowhere(world, route, page), page)
    return "" if _bare(answer) == _bare(missing) else "a foreign thing looks other than a missing one"


def _nowhere(world: World, route: Route, page: Page) -> str:
    """The same address with a name that nothing has, or an address that is none."""
    for name in ("job_id", "slug"):
        if name in route.variables:
            return route.path(_values(world, page) | {name: MISSING[name]})
    return "/no-such-page/at-all"


def _knock(world: World, who: Who, address: str, page: Page) -> tuple[HttpResponse, bool]:
    """One request, and whether it changed anything; what it changed is undone."""
    client = Client()
    headers = {}
    with transaction.atomic():
        if who in LEARNERS:
            headers["Authorization"] = f"Bearer {world.secrets[who]}"
        elif who is not Who.ANONYMOUS:
            client.force_login(world.users[who])
        data = {name: world.things.get(value, value) for name, value in page.data.items()}
        before = _changeable_rows()
        answer = (client.post if page.post else client.get)(address, data, headers=headers)
        changed = _changeable_rows() != before
        transaction.set_rollback(True)
    return answer, changed


def _changeable_rows() -> list[Any]:
    """Everything that a form of the portal may change for others than the one who sends it; and dismissals."""
    return [
        sorted(Job.objects.values_list("pk", "intent", "name", "priority", "tags", "deleted_at")),
        sorted(Attempt.objects.values_list("pk", "saves_requested")),
        sorted(Dismissal.objects.values_list("user", "job")),
        sorted(Membership.objects.values_list("user", "tenant", "role")),
        sorted(Token.objects.values_list("pk", flat=True)),
        sorted(User.objects.values_list("pk", "is_active", "is_superuser")),
        sorted(GroupMapping.objects.values_list("group", "tenant", "role")),
        sorted(SocialAccount.objects.values_list("user", "uid")),
        sorted(Secret.objects.values_list("pk", "name")),
        sorted(Project.objects.values_list("slug", "weight")),
        sorted(Quota.objects.values_list("pk", "limit")),
        sorted(SavedView.objects.values_list("pk", "name", "shared")),
        sorted(Tenant.objects.values_list("pk", "name", "state")),
        sorted(Runtime.objects.values_list("pk", "enabled")),
        sorted(UserObjectPermission.objects.values_list("user", "object_pk", "permission")),
    ]


def _values(world: World, page: Page) -> dict[str, Any]:
    return world.things | {name: world.things[thing] for name, thing in page.things.items()}


def _bare(answer: HttpResponse) -> tuple[int, str]:
    text = answer.content.decode()
    return answer.status_code, re.sub(
        r"[0-9a-z]{12}|vision-lab|no-such-team|csrf[^>]*|request[ _]id[^<]*", "", text
    )
