"""Who may do something is asked before what was sent: a caller without the permission learns nothing from a body."""

from __future__ import annotations

import pytest
from django.urls import URLPattern

from jobs.states import State
from portal.api.urls import urlpatterns
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

BAD = {"zzz": 1}
TENANT = "/tenants/vision-lab"
# path, what a member below the least role gets, and what a stranger gets
ROUTES = [
    ("POST", f"{TENANT}/members", 403, 404),
    ("PATCH", f"{TENANT}/members/alice", 403, 404),
    ("POST", f"{TENANT}/service-accounts", 403, 404),
    ("POST", f"{TENANT}/service-accounts/nightly/tokens", 403, 404),
    ("PUT", f"{TENANT}/quotas/cpu", 403, 404),
    ("POST", f"{TENANT}/uploads", 403, 404),
    ("POST", f"{TENANT}/jobs:validate", 403, 404),
    ("POST", f"{TENANT}/jobs", 403, 404),
    ("PATCH", TENANT, 403, 404),
    ("POST", "/tenants", 403, 403),
    ("POST", "/quota-changes", 403, 403),
    ("POST", "/users/alice/identities", 403, 403),
    ("PUT", "/group-mapping", 403, 403),
    ("POST", "/group-mapping:preview", 403, 403),
    ("PATCH", "/jobs/{job}", 403, 404),
    *[
        ("POST", f"/jobs/{{job}}/{verb}", 403, 404)
        for verb in ("halt", "resume", "cancel", "clone", "shares")
    ],
]


@pytest.mark.parametrize(("method", "path", "low", "foreign"), ROUTES)
def test_a_bad_body_reveals_nothing_to_a_caller_without_permission(
    carol: Api, bob: Api, people: People, method: str, path: str, low: int, foreign: int
) -> None:
    job = factories.job(owner=people.alice, state=State.PROCESSING)
    for caller, status in ((carol, low), (bob, foreign)):
        answer = caller(method, path.format(job=job.pk), BAD)
        assert (answer.status_code, answer.json()["errors"]) == (status, []), path


def test_every_operation_with_a_body_checks_permission() -> None:
    """Except what every user may do: create their own tokens, set their own secrets, accept their own memberships."""
    without = {
        operation.run.__name__
        for pattern in urlpatterns
        if isinstance(pattern, URLPattern)
        for method, operation in pattern.callback.cls.operations.items()
        if method in ("post", "put", "patch") and operation.authorize is None and not operation.hidden
    }
    assert without == {"token_create", "own_set", "member_accept"}
