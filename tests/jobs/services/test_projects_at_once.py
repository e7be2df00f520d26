"""Changes of projects that come at the same time are made one after the other, on a real PostgreSQL."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable
from functools import partial

import pytest
from django.db import connection, transaction

from jobs import invariants, wake
from jobs.services.projects import projects_change, projects_undo
from tenants.errors import TenantError
from tenants.models import AuditEntry, ProjectChange, Tenant, User
from tenants.services.projects import WHOLE, Change, State, projects_of, usual
from tenants.services.quotas import QUOTA_LOCK
from tests import factories
from tests.platform import wait_for

WAITING = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND NOT granted AND (classid::bigint << 32) + objid::bigint = %s
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
Work = Callable[[], object]


def waiting() -> int:
    with connection.cursor() as cursor:
        cursor.execute(WAITING, [QUOTA_LOCK])
        return int(cursor.fetchone()[0])


def at_once(works: dict[str, Work]) -> dict[str, str]:
    """Let all of them come to the lock before one has it, in this order; the codes of those that were refused."""
    refused: dict[str, str] = {}

    def attempt(name: str, work: Work) -> None:
        try:
            work()
        except TenantError as error:
            refused[name] = error.code
        finally:
            connection.close()

    threads = [threading.Thread(target=attempt, args=each) for each in works.items()]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [QUOTA_LOCK])
        for number, thread in enumerate(threads, 1):
            thread.start()
            wait_for(lambda number=number: waiting() == number, within_s=60, what="its wait for the lock")  # type: ignore[misc]
    for thread in threads:
        thread.join()
    return refused


def according_to_history(tenant: Tenant) -> State:
    """What the history says that is set; each of its lines begins with what the one before left."""
    known: State = {}
    for line in ProjectChange.objects.filter(tenant=tenant).order_by("pk"):
        key = (line.project, line.gpu_type)
        terms = known.setdefault(key, dict(usual(line.gpu_type)))
        for name, (before, after) in line.terms.items():
            assert terms[name] == before, (line, known)
            terms[name] = after
    return {key: terms for key, terms in known.items() if terms != usual(key[1])}


@pytest.mark.django_db(transaction=True)
def test_two_changes_and_an_undo_at_once_are_made_as_in_some_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "cycle", lambda: None)

    def made(of: Tenant, manager: User, *changes: Change) -> uuid.UUID | None:
        return projects_change(user=manager, tenant=of, changes=changes, reason="A deadline").id

    for order in itertools.permutations(("more", "new", "undo")):
        of = factories.tenant(quotas={"cpu": 8, "a100": 4})
        manager = factories.member(of, role="manager")
        vision, speech = (Change(name, WHOLE, {"weight": 1}) for name in ("vision", "speech"))
        first = made(of, manager, vision, Change("vision", "cpu", {"guarantee": 4}))
        assert first
        works: dict[str, Work] = {
            "more": partial(
                made,
                of,
                manager,
                Change("vision", "cpu", {"guarantee": 6}),
                Change("vision", "a100", {"limit": 2}),
            ),
            "new": partial(made, of, manager, speech, Change("speech", "cpu", {"guarantee": 4})),
            "undo": partial(projects_undo, user=manager, tenant=of, change_set=first, reason="Back"),
        }
        refused = at_once({name: works[name] for name in order})
        done = set(works) - set(refused)
        if (
            order[0] == "more"
        ):  # too little is left for another project, and the first change is not the last one
            assert refused == {"new": "invalid", "undo": "limit_changed"}, order
        else:  # the other project leaves too little, or there is no such project any more
            assert refused == {"more": "invalid"}, order
        now = projects_of(of)
        assert now == according_to_history(of), order
        guaranteed = sum(terms.get("guarantee") or 0 for (_, kind), terms in now.items() if kind == "cpu")
        assert guaranteed == (6 if order[0] == "more" else 4), order
        assert ProjectChange.objects.filter(tenant=of).values("change_set").distinct().count() == 1 + len(
            done
        )
        assert AuditEntry.objects.filter(tenant=of, action="project.change").count() == 1 + len(done)
    assert invariants.violations() == []
