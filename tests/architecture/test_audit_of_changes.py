"""Each operation that changes something leaves an entry in the audit log, or an event in its job's history.

The list is made from all routes: a new one fails until it leaves one, or is named here with what keeps it from that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.hashers import make_password
from django.core.cache import cache
from django.db import transaction
from django.db.models import Max
from django.http import HttpResponse
from django.test import Client, override_settings

from jobs.models import JobEvent
from tenants.models import AuditEntry, Membership, Quota, Token, User
from tests.architecture import rows
from tests.architecture.test_isolation_matrix import OPERATIONS
from tests.architecture.world import ISSUER, Who, World, build
from tests.factories import PASSWORD

pytestmark = pytest.mark.django_db

CHANGE_NOTHING = {
    "POST group-mapping:preview", "POST tenants/<str:t>/retention:preview", "POST tenants/<str:t>/jobs:validate",
    "PATCH me/preferences",  # of a user's own pages
    "POST tenants/<str:t>/views",  # of one's own; those of a shared one: tests/tenants/test_views.py
    "PATCH tenants/<str:t>/views/<int:view_id>",
    "POST tenants/<str:t>/dismissals",  # from one's own overview
    "DELETE tenants/<str:t>/dismissals",
    "PUT jobs/<str:job_id>/dismissal",
    "DELETE jobs/<str:job_id>/dismissal",
    "POST tenants/<str:t>/uploads",  # until a job names it, which its history says
    "POST me/two-factor/app",  # until a code of the app confirms it
}  # fmt: skip
ANOTHER_TEST = {
    "POST me/two-factor/app/confirm": "needs a code of an app: tests/tenants/test_two_factor.py",
    "POST me/two-factor/codes": "needs a second factor: tests/tenants/test_two_factor.py",
    "POST users/<str:username>/reset-two-factor": "needs a second factor: tests/tenants/test_two_factor.py",
    "POST me/two-factor/passkeys/<int:passkey_id>/remove": "needs a signature: tests/tenants/test_passkeys.py",
}
CHANGES = sorted(
    name for name in OPERATIONS if not name.startswith("GET ") and "(?P<rest>" not in name and name not in ANOTHER_TEST
)  # fmt: skip
ACTORS = (Who.OWNER, Who.MANAGER, Who.ADMIN)


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    """One world, in which there is something to change; each request is undone."""
    with django_db_blocker.unblock(), transaction.atomic(), override_settings(LUTHIER_OIDC_ISSUER=ISSUER):
        made = build()
        User.objects.filter(is_service_account=False).update(password=make_password(PASSWORD))
        Membership.objects.update(accepted_at=None)
        Quota.objects.update(limit=1)
        yield made
        transaction.set_rollback(True)


@pytest.fixture(autouse=True)
def _fresh_throttles() -> None:
    cache.clear()


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_leaves_an_entry_or_an_event(world: World, name: str) -> None:
    with transaction.atomic():
        before = AuditEntry.objects.aggregate(last=Max("pk"))["last"]
        events = JobEvent.objects.count()
        if name == "POST users/<str:username>/enable":
            User.objects.filter(username=world.things["username"]).update(is_active=False)
        answer = _act(world, name)
        assert answer.status_code == OPERATIONS[name][1].status, answer.content
        addresses = list(AuditEntry.objects.filter(pk__gt=before).values_list("address", flat=True))
        left = len(addresses) + JobEvent.objects.count() - events
        transaction.set_rollback(True)
    assert bool(left) != (name in CHANGE_NOTHING)
    assert set(addresses) <= {"127.0.0.1"}, "an entry says from where"


def test_what_is_named_here_exists() -> None:
    assert set(CHANGE_NOTHING) | set(ANOTHER_TEST) <= set(OPERATIONS)


def _act(world: World, name: str) -> HttpResponse:
    """As the first of these whom the route lets in, with the body that works."""
    route, row = OPERATIONS[name][0], rows.API[name]
    actor = world.users[next(who for who in ACTORS if row.rule[who] == rows.IN)]
    _, secret = Token.objects.create(user=actor, name="acts")
    address = route.path(world.things | {part: world.things[thing] for part, thing in row.things.items()})
    headers = {**row.headers, "Authorization": f"Bearer {secret}"}
    method = name.partition(" ")[0]
    return Client().generic(method, address, row.payload(), row.content_type, headers=headers)
