"""A search finds what a comparison of every row finds, and reads neither a tenant's history nor another tenant's."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jobs.models import Job
from jobs.selectors.jobs import job_list
from jobs.services.sharing import SharePermission, job_share
from jobs.states import State
from portal.pages import audit_log
from tenants import search
from tenants.models import AuditEntry, Tenant, User
from tests import factories
from tests.reads import history, pages_read

pytestmark = pytest.mark.django_db

JOBS = 6_000
FAR_BACK = f"{4_000:012x}"


@pytest.fixture
def always_by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "OFTEN", 10**6)


@pytest.fixture
def old_jobs() -> tuple[Tenant, User, User]:
    """Jobs of one tenant called run-…, one of them Needle-1 far back; a member; and the only member of another tenant,
    with one job."""
    big, small = factories.tenant("big"), factories.tenant("small")
    history(big, JOBS)
    Job.objects.filter(pk=FAR_BACK).update(name="Needle-1", tags=["gold"])
    viewer = factories.member(small, "viewer")
    factories.job(of=small, owner=viewer, state=State.COMPLETED, name="mine")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE jobs_job")
    return big, factories.member(big), viewer


def found(user: User, q: str, tenant: str = "") -> list[str]:
    return [job.name for job in job_list(user=user, q=q, tenant=tenant)[:51]]


def test_a_job_far_back_is_found_without_reading_the_others(old_jobs: tuple[Tenant, User, User]) -> None:
    member = old_jobs[1]
    for q in ("needle", "NEEDLE-1", "edl", "ee", "gold", FAR_BACK):
        assert found(member, q, "big") == ["Needle-1"], q
        assert pages_read(lambda q=q: found(member, q, "big")) < 400, q
    assert len(found(member, "run-", "big")) == 51


def test_what_matches_in_another_tenant_costs_nothing(old_jobs: tuple[Tenant, User, User]) -> None:
    viewer = old_jobs[2]
    for q in ("run", "run-1", "n", "needle", "gold", old_jobs[1].username):
        assert found(viewer, q) == (["mine"] if q == "n" else []), q
        assert pages_read(lambda q=q: found(viewer, q)) < 150, q
    needle = Job.objects.get(name="Needle-1")
    job_share(user=needle.owner, job_id=needle.pk, username="viewer", permission=SharePermission.VIEW)
    assert found(viewer, "needle") == found(viewer, "needle", "big") == ["Needle-1"]


TEXTS = st.text(st.sampled_from("aAbB1-_%\\'\" ßſİıéÉΣς中🙂"), min_size=1, max_size=8)


@pytest.mark.usefixtures("always_by_index")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(TEXTS, min_size=1, max_size=5), q=TEXTS)
@example(names=["Straße", "STRASSE"], q="ss")
@example(names=["ı", "I", "i"], q="i")
def test_any_text_is_found_as_by_comparison(names: list[str], q: str) -> None:
    with transaction.atomic():
        tenant = factories.tenant()
        owner = factories.member(tenant)
        for name in names:
            factories.job(of=tenant, owner=owner, state=State.COMPLETED, name=name)
        compared = Job.objects.filter(tenant=tenant, name__icontains=q.strip())
        by_index = job_list(user=owner, tenant=tenant.slug, q=q) if q.strip() else compared
        ids = {job.pk for job in by_index if not job.pk.startswith(q.strip().lower())}
        assert ids >= {job.pk for job in compared if not job.pk.startswith(q.strip().lower())}
        assert {job.pk for job in by_index.filter(name__icontains=q.strip())} == {job.pk for job in compared}


LOG = """
INSERT INTO tenants_auditentry (tenant_id, actor_id, action, target, reason, details, request_id, at)
SELECT %(tenant)s, %(actor)s, 'job.read', 'job-' || n, '', '{}', '', now() - n * interval '1 minute'
FROM generate_series(1, 10000) AS n
"""


@pytest.fixture
def old_log() -> tuple[Tenant, Tenant]:
    big, small = factories.tenant("big"), factories.tenant("small")
    with connection.cursor() as cursor:
        cursor.execute(LOG, {"tenant": big.pk, "actor": factories.user("reader").pk})
        cursor.execute("ANALYZE tenants_auditentry")
    AuditEntry.objects.create(tenant=small, action="token.create", target="laptop")
    return big, small


def test_the_audit_log_is_searched_without_reading_it(old_log: tuple[Tenant, Tenant]) -> None:
    for q, of, count in (
        ("job-9999", None, 1),
        ("laptop", None, 1),
        ("nothing like it", None, 0),
        ("job-9999", old_log[1], 0),
        ("JOB", old_log[1], 0),
        ("reader", old_log[1], 0),
        ("op", old_log[1], 1),
        ("reader", None, 51),
        ("big", None, 51),
        ("job", None, 51),
    ):
        assert len(audit_log._rows(of, q, audit_log.Days(), None)) == count, q
        assert pages_read(lambda q=q, of=of: audit_log._rows(of, q, audit_log.Days(), None)) < 400, q
