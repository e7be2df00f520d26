"""What is read does not grow with the history: counted in pages of the database, so no clock decides."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from bench import year
from jobs.lifecycle import cycle
from jobs.models import Estimate, Learner
from jobs.selectors.checkpoints import kept_bytes
from jobs.selectors.kept_rows import KeptRows
from jobs.selectors.queue_places import around, entries, places
from jobs.selectors.retention import chosen, effects
from jobs.selectors.snapshot import snapshot
from jobs.selectors.usage import By, hours_by_day_and_user, usage_by_day_and_user, usage_of
from jobs.states import State
from tenants.retention import OF_JOBS, Kind, Rule
from tenants.services import editing, images
from tests import factories
from tests.reads import history, pages_read, roll_up_usage

pytestmark = pytest.mark.django_db


def test_specs_and_numbers_of_waiting_jobs_are_read_as_one_value() -> None:
    """A long one is stored apart from its row, and each path into it would fetch all of it again."""
    tenant = factories.tenant()
    numbers = {"slot_type": "cpu", "nodes_ahead": 0, "scope": "tenant", "position": 1}
    waits = factories.job(of=tenant, reason_code="QUOTA_GPUS", reason_numbers=numbers)
    found: list[Any] = []
    with CaptureQueriesContext(connection) as queries:
        found += snapshot(nodes=(), now=timezone.now()).waiting
        found += places(tenant)
    assert [(one.job, one.slot_type) for one in found] == [(waits.pk, "cpu")] * 2
    assert found[1].place == 1
    for column in ("spec", "reason_numbers"):
        selected = [one["sql"].partition(" FROM ")[0] for one in queries.captured_queries]
        counts = [columns.count(f'"jobs_job"."{column}"') for columns in selected if f'"{column}"' in columns]
        assert counts, column
        assert set(counts) == {1}, [each for each in selected if f'"{column}"' in each]


def test_the_queue_reads_no_spec_of_the_jobs_that_it_shows() -> None:
    """Two hundred of them are on the page, each with its code."""
    tenant = factories.tenant()
    alice = factories.member(tenant)
    numbers = {"slot_type": "cpu", "nodes_ahead": 0, "scope": "tenant", "position": 1}
    job = factories.job(
        owner=alice, reason_numbers=numbers, reason_message="Waits for 4 CPUs.", spec_text="x" * 99
    )
    Estimate.objects.create(job=job, tenant=tenant, soonest=timezone.now(), latest=timezone.now())
    with CaptureQueriesContext(connection) as queries:
        (entry,) = entries(alice, tenant, places(tenant), timezone.now())
        (beside,) = around(alice, job, timezone.now())
    assert (entry.job, entry.owner, entry.asks, entry.waits_for) == (
        job.pk,
        alice.username,
        1,
        "Waits for 4 CPUs.",
    )
    assert entry.estimate is not None
    assert replace(beside, is_this=False) == replace(entry, estimate=beside.estimate)
    read = [one["sql"] for one in queries.captured_queries]
    assert not [sql for sql in read if '"jobs_job"."spec' in sql or '"jobs_job"."packages"' in sql]


def test_the_bench_of_a_year_reads_as_a_pass_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that keeps the queue, over and over, and one that begins with nothing."""
    factories.job()
    factories.job(state=State.PROCESSING)
    kept: list[KeptRows] = []
    read = cycle.read_rows
    monkeypatch.setattr(
        cycle, "read_rows", lambda nodes, keeps, broken: (kept.append(keeps), read(nodes, keeps, broken))[1]
    )
    took, computed = year.measure_cycle(3, waiting=1)
    assert {name: len(runs) for name, runs in took.items()} == dict.fromkeys(
        (year.WARM, year.FIRST, year.TICK), 3
    )
    assert took.keys() == computed.keys()
    assert [len({id(each) for each in some}) for some in (kept[:4], kept[4:])] == [1, 4]


def test_the_scheduler_reads_no_spec_of_a_waiting_job() -> None:
    """Each takes pages of its own. What the scheduler needs is beside the row, except of rows of earlier versions."""
    tenant = factories.tenant()
    code = {"files": {"main.py": secrets.token_hex(20_000)}}
    spec = {"resources": {"cpus": 1, "memory": "1Gi"}, "code": code}
    for _ in range(20):
        factories.job(of=tenant, spec=spec, resources=json.dumps(spec["resources"]))
    read = partial(snapshot, nodes=(), now=timezone.now())
    assert {one.resources.memory_mib for one in read().waiting} == {1024}
    beside = pages_read(read)
    tenant.jobs.update(resources=None)
    assert {one.resources.memory_mib for one in read().waiting} == {1024}
    assert pages_read(read) > beside + 20 * 5


@pytest.mark.parametrize("kind", OF_JOBS)
def test_a_preview_of_retention_asks_nothing_for_each_job(kind: Kind) -> None:
    """All jobs are judged, as sets; the removal judges by the same query."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobs_job CASCADE")  # and the dead rows of tests before
        tenant = factories.tenant()
        history(tenant, 2_000)
        cursor.execute("UPDATE jobs_progress SET log_bytes = 100, metric_seq = 10")
        cursor.execute("ANALYZE jobs_progress")
    judge = partial(effects, tenant, {kind: Rule(days=30)})
    (found,) = judge()
    removed = 0 if kind in (Kind.CHECKPOINTS, Kind.RESULTS) else 2_000 - 30 * 24
    assert found.jobs == pytest.approx(removed, abs=2)
    assert len(chosen(tenant.pk, kind, Rule(days=30), 5_000)) == found.jobs
    assert pages_read(judge) < 2_000


def test_a_preview_of_logs_reads_no_learner_of_another_tenant() -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobs_job CASCADE")
        own, other = factories.tenant(), factories.tenant()
        history(own, 5_000)
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(
            "UPDATE jobs_job SET tenant_id = %s WHERE created_at < now() - interval '51 h'", [other.pk]
        )
        like = factories.job(of=other, state=State.COMPLETED)
        columns = ", ".join(
            field.column
            for field in Learner._meta.concrete_fields
            if not field.generated and field.name not in {"id", "job", "tenant", "attempt", "secret_sha256"}
        )
        cursor.execute(
            f"INSERT INTO jobs_learner (job_id, tenant_id, attempt, secret_sha256, {columns})"
            f" SELECT job.id, job.tenant_id, n, job.id || n, {columns} FROM jobs_learner learner, jobs_job job,"
            " generate_series(2, 5) n WHERE learner.job_id = %s",
            [like.pk],
        )
        cursor.execute("UPDATE jobs_learner SET log_lines = 3")
        cursor.execute("UPDATE jobs_progress SET log_bytes = 100")
        cursor.execute("ANALYZE jobs_learner, jobs_progress, jobs_job")
    with CaptureQueriesContext(connection) as queries:
        (found,) = effects(own, {Kind.LOGS: Rule(days=0)})
    assert (found.jobs, found.rows) == (27, 27 * 12)  # the others ended within a day
    with connection.cursor() as cursor:
        [judgement] = [sql for query in queries if "jobs_learner" in (sql := query["sql"])]
        cursor.execute(f"EXPLAIN {judgement}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "on jobs_learner" in plan
    assert "Seq Scan on jobs_learner" not in plan, plan


def test_bytes_of_a_tenant_s_checkpoints_are_read_from_an_index_alone() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert kept_bytes(factories.tenant().pk) == 0
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("SET LOCAL enable_bitmapscan = off")
        cursor.execute(f"EXPLAIN {queries.captured_queries[-1]['sql']}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Index Only Scan using checkpoint_kept" in plan, plan


def test_changes_of_a_tenant_s_images_are_found_without_reading_its_audit_log() -> None:
    tenant = factories.tenant()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(
            "INSERT INTO tenants_auditentry (tenant_id, action, target, reason, details, request_id, at)"
            " SELECT %s, CASE n WHEN 3 THEN 'images.change' ELSE 'job.read' END, '', '', '{}', '', now()"
            " FROM generate_series(1, 10000) n",
            [tenant.pk],
        )
        cursor.execute("ANALYZE tenants_auditentry")
    assert len(editing.changes(tenant, images.CHANGED, 20)) == 1
    assert pages_read(lambda: list(editing.changes(tenant, images.CHANGED, 20))) < 30


def test_days_and_people_of_usage_add_up_to_the_people() -> None:
    tenant = factories.tenant()
    history(tenant, 300)
    roll_up_usage()
    span = {"start": timezone.now() - timedelta(days=9, hours=3.5), "end": timezone.now()}
    of_days = usage_by_day_and_user(tenant, **span)
    (person,) = usage_of(tenant, **span, by=By.USER)
    assert {day.user for day in of_days} == {person.key}
    assert {day.user for day in usage_by_day_and_user(tenant, **span, named=["nobody"])} == {""}
    sums = [sum(each) for each in zip(*((day.used, day.waited, day.lost) for day in of_days), strict=True)]
    assert sums == pytest.approx([person.used, person.waited, person.lost], abs=0.1)
    in_file = hours_by_day_and_user(tenant, **span)
    assert [line[:3] for line in in_file] == [(str(day.day), day.user, day.gpu_type) for day in of_days]
    assert [[float(cell) for cell in line[3:]] for line in in_file] == [
        pytest.approx([day.used / 3600, day.waited / 3600, day.lost / 3600], abs=0.0001) for day in of_days
    ]


def test_no_index_contains_what_a_heartbeat_changes() -> None:
    """PostgreSQL then writes the row's new version into the same page and into no index (HOT)."""
    changes = {
        "jobs_job": [
            "lease_owner",
            "lease_token",
            "lease_until",
            "fence",
            "next_reconcile_at",
            "fail_streak",
        ],
        "jobs_attempt": ["known_at"],
        "jobs_learner": ["last_seen_at", "log_bytes", "log_lines", "log_crc", "metric_cursor", "last_step"],
        "jobs_progress": ["step", "metrics", "log_seq", "log_bytes", "metric_seq", "reported_at"],
    }
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE tablename = ANY(%s)", [[*changes]]
        )
        indexes = cursor.fetchall()
        cursor.execute("SELECT relname, reloptions FROM pg_class WHERE relname = ANY(%s)", [[*changes]])
        room = dict(cursor.fetchall())
    assert not [
        (index, column)
        for table, index, text in indexes
        for column in changes[table]
        if re.search(rf"\b{column}\b", text)
    ]
    assert all(any("fillfactor" in option for option in room[table] or ()) for table in changes)
