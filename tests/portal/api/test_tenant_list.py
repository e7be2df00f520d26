"""The list of tenants reads roles and versions once, and no audit log for them."""

from __future__ import annotations

from django.db import connection
from django.test.utils import CaptureQueriesContext

from tenants.models import Membership
from tenants.roles import Role
from tenants.services.tenants import version
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api
from tests.reads import pages_read


def statements(api: Api) -> int:
    with CaptureQueriesContext(connection) as queries:
        answer = api.get("/tenants")
    assert answer.status_code == 200
    return len(queries)


def test_more_tenants_take_no_more_statements(admin: Api, alice: Api, people: People) -> None:
    _first = [statements(api) for api in (admin, alice)]  # reads what later ones find in memory
    few = [statements(api) for api in (admin, alice)]
    for n in range(10):
        more = factories.tenant(f"team-{n}")
        Membership.objects.create(user=people.alice, tenant=more, role=Role.VIEWER)
    assert [statements(api) for api in (admin, alice)] == few
    roles = {item["slug"]: item["role"] for item in alice.get("/tenants").json()["items"]}
    assert (roles["vision-lab"], roles["team-3"]) == ("researcher", "viewer")
    assert {item["role"] for item in admin.get("/tenants").json()["items"]} == {None}


def test_the_version_of_a_tenant_reads_nothing_of_its_audit_log(people: People) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tenants_auditentry (tenant_id, action, target, reason, details, request_id)"
            " SELECT %s, 'job.read', 'job', '', '{}', '' FROM generate_series(1, 3000)",
            [people.vision.pk],
        )
        cursor.execute("ANALYZE tenants_auditentry")
    assert pages_read(lambda: version(people.vision)) < 20
