"""What is read every second is one range of an index, however many jobs a tenant has had."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.selectors.throughput import _Past
from jobs.states import State
from portal.live.frames import ReadRequest
from portal.live.protocol import parse_channel
from portal.live.read_jobs import TenantJobsSource
from tests import factories

pytestmark = pytest.mark.django_db


def plans(queries: CaptureQueriesContext) -> list[str]:
    """How the database would find jobs if reading the whole table were dear, as it is where there are many."""
    found = []
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for query in queries.captured_queries:
            if "jobs_job" in query["sql"] and query["sql"].startswith("SELECT"):
                cursor.execute(f"EXPLAIN {query['sql']}")
                found.append("\n".join(row[0] for row in cursor.fetchall()))
    return found


def test_no_row_of_a_tenant_is_read_that_is_not_shown() -> None:
    tenant = factories.tenant()
    factories.job(of=tenant)
    channel = parse_channel(f"tenant:{tenant.slug}:jobs")
    assert channel is not None
    with CaptureQueriesContext(connection) as queries:
        (page,) = TenantJobsSource().read([ReadRequest(channel, 0)]).values()
    assert len(page.frames) == 1
    jobs = plans(queries)
    assert jobs
    assert not [plan for plan in jobs if "<> ALL" in plan], "a condition that no index answers"


COPIES = """INSERT INTO jobs_job SELECT copy.* FROM jobs_job job, generate_series(1, 1000) n,
  LATERAL jsonb_populate_record(job, jsonb_build_object(
    'id', lpad(n::text, 12, '0'), 'tenant_id', (%s::bigint[])[1 + n %% 20])) copy"""


def test_past_jobs_are_found_by_their_tenant() -> None:
    """Among many jobs of many: on a nearly empty table one index is as good to the planner as another."""
    tenant, *others = (factories.tenant() for _ in range(21))
    factories.job(of=tenant, state=State.COMPLETED)
    with connection.cursor() as cursor:
        cursor.execute(COPIES, [[other.pk for other in others]])
        cursor.execute("ANALYZE jobs_job")
    with CaptureQueriesContext(connection) as queries:
        _Past([tenant.pk])
    (plan,) = plans(queries)
    assert "job_by_" in plan
