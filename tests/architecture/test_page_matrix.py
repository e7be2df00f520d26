"""Every page and form of the portal, knocked at by everybody: in, to the login, or the page of a missing thing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction
from django.http import HttpResponse
from django.test import Client

from jobs.models import Job
from tenants.models import AuditEntry
from tests.architecture import rows
from tests.architecture.routes import Route, page_routes
from tests.architecture.rows import IN, Page
from tests.architecture.world import LEARNERS, MISSING, Who, World, build

ROUTES = {route.text: route for route in page_routes()}
CELLS = [(name, page) for name, pages in sorted(rows.PAGES.items()) for page in pages]


pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    """One world for all cells: every knock undoes what it changed."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield build()
        transaction.set_rollback(True)


def test_every_page_has_a_row_and_every_row_a_page() -> None:
    assert set(ROUTES) - set(rows.PAGES) == set(), "pages without a row in tests/architecture/rows.py"
    assert set(rows.PAGES) - set(ROUTES) == set(), "rows without a page"


@pytest.mark.parametrize(("name", "page"), CELLS, ids=[f"{name} {page.methods[0]}" for name, page in CELLS])
def test_a_page_lets_in_whom_its_row_names(world: World, name: str, page: Page) -> None:
    told = []
    for method in page.methods:
        for who in Who:
            if fault := _fault(world, who, method, ROUTES[name], page):
                told.append(f"{method} as {who}: {fault}")
    assert not told, "\n".join([name, *told])


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


def _fault(world: World, who: Who, method: str, route: Route, page: Page) -> str:
    """What is wrong with the answer this person gets; empty when nothing is."""
    address = route.path(_values(world, page))
    answer, intent = _knock(world, who, method, address, page)
    if answer.status_code >= 500 and route.text != "readyz":
        return f"{answer.status_code}"
    if page.for_learners:
        refused = answer.status_code in (401, 403, 404, 405)
        return "" if who in LEARNERS or refused else f"let in with {answer.status_code}"
    if page.open_to_all:
        return (
            ""
            if answer.status_code < 400 or answer.status_code == 503
            else f"turned away with {answer.status_code}"
        )
    wanted = page.let_in[who]
    if wanted == 401:
        to_login = answer.status_code == 302 and answer["Location"].startswith("/login")
        return "" if to_login and not intent else f"{answer.status_code} instead of the login"
    if bool(page.intent) and (wanted == IN) != (intent == page.intent):
        return f"the wish stands: {intent or 'none'}"
    if wanted == IN:
        return "" if answer.status_code < 400 else f"turned away with {answer.status_code}"
    if wanted == 404:
        return _told_apart(world, who, method, route, page, answer)
    return "" if page.intent or answer.status_code in (403, 404) else f"let in with {answer.status_code}"


def _told_apart(world: World, who: Who, method: str, route: Route, page: Page, answer: HttpResponse) -> str:
    if answer.status_code != 404:
        return f"{answer.status_code} instead of 404"
    values = _values(world, page)
    name = next(each for each in ("job_id", "slug") if each in route.variables)
    missing, _ = _knock(world, who, method, route.path(values | {name: MISSING[name]}), page)
    return "" if _bare(answer) == _bare(missing) else "a foreign thing looks other than a missing one"


def _knock(world: World, who: Who, method: str, address: str, page: Page) -> tuple[HttpResponse, str]:
    """One request, and the wish that stood afterwards if it is a new one; what it changed is undone."""
    job = Job.objects.get(pk=world.things["job_id"])
    client = Client()
    headers = {}
    with transaction.atomic():
        if who in LEARNERS:
            headers["Authorization"] = f"Bearer {world.secrets[who]}"
        elif who is not Who.NOBODY:
            client.force_login(world.users[who])
        data = {name: world.things.get(value, value) for name, value in page.data.items()}
        send = client.post if method == "POST" else client.get
        answer = send(address, data, headers=headers)
        now = Job.objects.get(pk=job.pk).intent
        transaction.set_rollback(True)
    return answer, now if now != job.intent else ""


def _values(world: World, page: Page) -> dict[str, Any]:
    return world.things | {name: world.things[thing] for name, thing in page.things.items()}


def _bare(answer: HttpResponse) -> tuple[int, str]:
    text = answer.content.decode()
    return answer.status_code, re.sub(
        r"[0-9a-z]{12}|vision-lab|no-such-team|csrf[^>]*|request[ _]id[^<]*", "", text
    )
