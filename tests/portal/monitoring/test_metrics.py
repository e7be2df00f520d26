"""/metrics: who may read it, what it shows of the database and of its process, and what it says without a database."""

from __future__ import annotations

import re
import socket
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.db import connection, connections
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone
from prometheus_client import Counter
from prometheus_client.parser import text_string_to_metric_families

from jobs import counters, events
from jobs.blobs import StoreUnavailable, health
from jobs.models import SCHEDULER, ClusterNode, Job, PeriodicTask, PlatformStop, Worker
from jobs.selectors import monitoring
from jobs.serialization import json_bytes
from jobs.states import EventCode, Intent, State
from portal.monitoring import collector, views
from tenants import audit, audit_chain, audit_forward
from tenants.models import AuditEntry
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)  # the facts are read on a connection of their own

ROOT = Path(__file__).resolve().parents[3]
FROM_THE_SCRAPE = {"instance", "job"}
"""Labels that Prometheus adds."""
TOKEN = "prometheus-" + "x" * 50
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(autouse=True)
def token(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test reads facts of its own, and gives a busy machine time for them."""
    settings.LUTHIER_METRICS_TOKEN = TOKEN
    monkeypatch.setattr(collector, "FRESH_S", 0.0)
    monkeypatch.setattr(collector, "ANSWER_S", 60.0)
    monkeypatch.setattr(monitoring, "STATEMENT_MS", 60_000)
    with connection.cursor() as cursor:  # history is append-only, so other tests' may be there
        cursor.execute("TRUNCATE jobs_jobevent")


def scraped() -> Samples:
    answer = Client().get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    assert answer["Cache-Control"] == "no-store"
    families = text_string_to_metric_families(answer.content.decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


@pytest.mark.parametrize("given", ["", "Bearer ", f"Bearer {TOKEN}x", TOKEN, f"Basic {TOKEN}", "Bearer é"])
def test_without_the_token_there_is_nothing_to_read(given: str) -> None:
    answer = Client().get("/metrics", headers={"Authorization": given} if given else {})
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Bearer"
    assert b"luthier_" not in answer.content


def test_a_person_who_is_signed_in_reads_no_metrics() -> None:
    client = Client()
    client.force_login(factories.user("root", is_superuser=True))
    assert client.get("/metrics").status_code == 401


def test_an_installation_without_a_token_serves_no_metrics(settings: Any) -> None:
    settings.LUTHIER_METRICS_TOKEN = None
    for header in ("", "Bearer ", "Bearer None"):
        assert Client().get("/metrics", headers={"Authorization": header}).status_code == 404


def test_queue_slots_and_nodes_are_those_of_the_rows() -> None:
    tenant = factories.tenant("vision-lab", quotas={"a100": 8})
    factories.quota(tenant, "h100", 4)
    runs = {"of": tenant, "state": State.PROCESSING, "gpu_type": "h100"}
    factories.job(gpus=2, slots=2, **runs)
    factories.job(gpus=1, slots=1, opportunistic=True, **runs)
    waiting = factories.job(of=tenant, state=State.QUEUED)
    Job.objects.filter(pk=waiting.pk).update(
        gpus=2, slots=2, learners=3, gpu_type="a100", reason_code="quota_exceeded",
        queued_at=Now() - timedelta(seconds=900), intent=Intent.RUN,
    )  # fmt: skip
    began = timezone.now() - timedelta(seconds=700)
    PlatformStop.objects.create(began_at=began, ended_at=began + timedelta(seconds=300))
    ClusterNode.objects.create(name="n1", cluster="memory", slot_type="h100", slots=8, others_slots=1)
    ClusterNode.objects.create(name="n2", cluster="memory", slot_type="h100", slots=8, cordoned=True)
    found = scraped()
    assert value(found, "luthier_database_up") == 1
    assert value(found, "luthier_queue_jobs", tenant="vision-lab", pool="a100") == 1
    assert value(found, "luthier_queue_slots", tenant="vision-lab", pool="a100") == 6
    assert value(found, "luthier_queue_length") == 1
    assert 600 <= (value(found, "luthier_queue_wait_seconds", pool="a100", quantile="1.0") or 0) < 900, (
        "for 300 of 900 s the platform was stopped"
    )
    assert value(found, "luthier_queue_reasons", reason="quota_exceeded") == 1
    assert value(found, "luthier_jobs", tenant="vision-lab", state="QUEUED") == 1
    assert value(found, "luthier_slots_quota", tenant="vision-lab", pool="a100") == 8
    assert value(found, "luthier_slots_used", tenant="vision-lab", pool="h100") == 2
    assert value(found, "luthier_slots_opportunistic", tenant="vision-lab", pool="h100") == 1
    assert value(found, "luthier_slots_opportunistic", tenant="vision-lab", pool="a100") == 0
    shown = {"usable": 8, "unusable": 8, "outside": 1, "used": 3, "free": 4}
    assert {kind: value(found, "luthier_pool_slots", pool="h100", kind=kind) for kind in shown} == shown
    assert value(found, "luthier_nodes", pool="h100", state="cordoned") == 1


def test_opportunistic_jobs_are_left_out_of_waits() -> None:
    """They may wait for as long as others take everything: no alert is worth raising for that."""
    waits = factories.job(state=State.QUEUED, opportunistic=True)
    Job.objects.filter(pk=waits.pk).update(queued_at=Now() - timedelta(hours=5), intent=Intent.RUN)
    moved(factories.job(state=State.PROCESSING, opportunistic=True), "DOWNLOADING", "PROCESSING", attempt=1)
    found = scraped()
    assert value(found, "luthier_queue_length") == 1
    assert value(found, "luthier_queue_wait_seconds", pool="cpu", quantile="1.0") is None
    assert value(found, "luthier_latency_samples", step="start") == 0


def test_latencies_are_those_of_the_last_minutes_only() -> None:
    job = factories.job(state=State.PROCESSING)
    Job.objects.filter(pk=job.pk).update(created_at=Now() - timedelta(seconds=30))
    save = factories.checkpoint(job, n=1)
    type(save).objects.filter(pk=save.pk).update(created_at=Now() - timedelta(seconds=4), committed_at=Now())
    moved(job, "DOWNLOADING", "PROCESSING", attempt=1)
    moved(job, "STOPPING", "HALTED", attempt=1, numbers={"seconds": 7.5})
    moved(job, "HALTED", "QUEUED", attempt=1)
    moved(job, "DOWNLOADING", "PROCESSING", attempt=2)
    add(job, code=EventCode.CHECKPOINT_STORED, numbers={"checkpoint": 1})
    moved(job, "STORING", "FAILED", attempt=2, reason="out_of_memory")
    found = scraped()
    counted = {
        step: value(found, "luthier_latency_samples", step=step)
        for step in ("start", "resume", "halt", "save")
    }
    assert counted == {"start": 1, "resume": 1, "halt": 1, "save": 1}
    assert 30 <= (value(found, "luthier_latency_seconds", step="start", quantile="0.5") or 0) < 600
    assert 4 <= (value(found, "luthier_latency_seconds", step="save", quantile="0.9") or 0) < 600
    assert value(found, "luthier_latency_seconds", step="halt", quantile="1.0") == 7.5
    assert value(found, "luthier_recent_ends", state="FAILED", reason="out_of_memory") == 1
    with mock.patch.dict(monitoring.VALUES, {"window_s": 0}):
        later = scraped()
    assert value(later, "luthier_latency_samples", step="halt") == 0
    assert value(later, "luthier_latency_seconds", step="halt", quantile="1.0") is None
    assert value(later, "luthier_recent_ends", state="FAILED", reason="out_of_memory") is None


def moved(job: Job, before: str, after: str, **fields: Any) -> None:
    add(job, code=EventCode.MOVED, from_state=before, to_state=after, **fields)


def add(job: Job, **fields: Any) -> None:
    fields = {"message": "", "source": "lifecycle", **fields}
    events.append(job_id=job.pk, tenant_id=job.tenant_id, **fields)


def test_a_pass_that_never_completed_has_no_age_and_a_silent_worker_is_not_alive() -> None:
    Worker.objects.create(name="worker-1")
    Worker.objects.create(name=f"{SCHEDULER}scheduler")
    silent = Worker.objects.create(name="worker-2")
    Worker.objects.filter(pk=silent.pk).update(seen_at=Now() - timedelta(seconds=60))
    found = scraped()
    assert value(found, "luthier_scheduler_pass_age_seconds") is None
    assert value(found, "luthier_workers", state="alive") == 1
    assert value(found, "luthier_workers", state="silent") == 1
    assert value(found, "luthier_schedulers", state="alive") == 1
    assert value(found, "luthier_schedulers", state="silent") == 0
    PeriodicTask.objects.update_or_create(
        name=PeriodicTask.CYCLE, defaults={"done_at": Now() - timedelta(seconds=50)}
    )
    assert (value(scraped(), "luthier_scheduler_pass_age_seconds") or 0) >= 50


def test_what_is_not_sent_of_the_audit_log_is_a_fact_while_a_worker_sends_it(settings: Any) -> None:
    """Of the rows: a web process need not have the address."""
    names = ("unsent_entries", "unsent_age_seconds", "send_failures")

    def facts() -> list[float | None]:
        found = scraped()
        return [value(found, f"luthier_audit_{name}") for name in names]

    audit.record(actor=None, action="job.edit")
    assert facts() == [None, None, None]
    AuditEntry(action="job.edit", at=timezone.now() - timedelta(hours=2)).save(force_insert=True)
    audit_chain.seal_new()
    settings.LUTHIER_AUDIT_URL = "http://127.0.0.1:1/"  # no one listens there
    row = PeriodicTask.objects.create(
        name="forward", result=audit_forward.send_new({}, json_bytes, lambda _: None)
    )
    settings.LUTHIER_AUDIT_URL = None
    count, age_s, failures = facts()
    head = audit_chain.head()
    assert (count, failures) == (AuditEntry.objects.count(), 1)
    assert age_s is not None
    row.result["places"] = dict.fromkeys(row.result["places"], head - 1)
    row.save()
    count, age_s, failures = facts()
    assert count == 1
    assert 7200 <= (age_s or 0) < 9000
    row.result["places"] = dict.fromkeys(row.result["places"], head)
    row.save()
    assert facts() == [0, 0, 1]
    row.result["named"] = dict.fromkeys(
        row.result["named"], audit_forward.database_s() - audit_forward.NAMED_S
    )
    row.save()
    assert facts() == [None, None, None]


def test_a_store_of_files_that_is_away_or_slow_is_a_fact_while_workers_check_it() -> None:
    def facts() -> list[float | None]:
        found = scraped()
        return [value(found, "luthier_blob_store_problem", kind=kind) for kind in ("away", "slow")]

    assert facts() == [None, None]
    row = PeriodicTask.objects.create(name="blobs", result=health.examine({}, timezone.now()), done_at=Now())
    assert facts() == [0, 0]
    with mock.patch.object(health, "SLOW_S", -1.0):
        row.result = health.examine({}, timezone.now())
    row.save()
    assert facts() == [0, 1]
    with mock.patch.object(health, "check", side_effect=StoreUnavailable("refused")):
        row.result = health.examine({}, timezone.now())
    row.save()
    assert facts() == [1, 0]
    PeriodicTask.objects.update(done_at=Now() - timedelta(seconds=health.OVERDUE_S))
    assert facts() == [None, None], "no worker has looked since"


def test_the_disks_of_a_process_are_shown_with_what_must_be_free(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "DISKS_S", 60.0)
    settings.LUTHIER_MIN_FREE_DISK = 2**60
    settings.LUTHIER_BLOBS = str(tmp_path)
    shown = {
        (name, labels["folder"]): found
        for (name, pairs), found in scraped().items()
        if name.startswith("luthier_disk_") and (labels := dict(pairs))["process"]
    }
    for folder in ("data", "blobs"):
        assert 0 < shown.pop(("luthier_disk_free_bytes", folder)) < 2**60
        assert shown.pop(("luthier_disk_required_bytes", folder)) == 2**60
    assert not shown

    def broken() -> None:
        raise OSError("the file system is read-only")

    monkeypatch.setattr(collector, "disks", broken)
    assert not [name for name, _ in scraped() if name.startswith("luthier_disk_")]


QUERIES = ROOT / "deploy" / "monitoring"
USED = re.compile(r"luthier_\w+(?:\{(?P<matchers>[^}]*)\})?")
MATCHER = re.compile(r'(\w+)=~?"([^"]*)"')


@pytest.mark.parametrize("file", ["alerts.yml", "dashboard.json", "adapter.yml"])
def test_every_metric_and_label_in_a_query_exists(file: str) -> None:
    """An alert on a metric that is misspelled never fires, and Prometheus says nothing."""
    labels = {fact.name: {*fact.labels} for fact in monitoring.FACTS}
    for (name, pairs), _ in scraped().items():
        labels.setdefault(name, set()).update(dict(pairs))
    for each in vars(counters).values():
        if isinstance(each, Counter):
            labels[f"{each._name}_total"] = {*each._labelnames, "process"}
    sql = {fact.name: fact.sql for fact in monitoring.FACTS}
    text = (QUERIES / file).read_text().replace('\\"', '"')
    used = list(USED.finditer(text))
    assert used
    for each in used:
        name = each[0].partition("{")[0]
        assert name in labels, f"{file}: {name}"
        for label, wanted in MATCHER.findall(each["matchers"] or ""):
            assert label in labels[name], f"{file}: {each[0]}"
            word = rf"(?<![\w.]){re.escape(wanted)}(?![\w.])"
            assert re.search(word, sql.get(name, wanted)), f"{file}: no {label} of {name} is {wanted}"
    known = set().union(*labels.values()) | FROM_THE_SCRAPE
    for named in re.findall(r"\b(?:by|on|without) \(([^)]*)\)", text):
        assert {each.strip() for each in named.split(",")} <= known, named


def test_counters_say_which_process_counted() -> None:
    before = counters.INGEST_LINES._value.get()
    counters.INGEST_LINES.inc(3)
    lines = {labels: n for (name, labels), n in scraped().items() if name == "luthier_ingest_lines_total"}
    [(labels, counted)] = lines.items()
    assert counted == before + 3
    assert dict(labels)["process"].startswith(f"{socket.gethostname()}:")


def test_without_the_database_the_scrape_succeeds_and_shows_no_old_fact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert value(scraped(), "luthier_queue_length") == 0
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))  # nothing listens here, so a connection is refused
        address = {"HOST": "127.0.0.1", "PORT": str(unused.getsockname()[1])}
        with mock.patch.dict(connections.settings["default"], address):
            found = scraped()
    assert value(found, "luthier_database_up") == 0
    assert value(found, "luthier_queue_length") is None
    assert any(name == "luthier_ingest_lines_total" for name, _ in found)


def test_many_scrapes_share_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "FRESH_S", 600.0)
    facts = collector.Facts()
    with mock.patch.object(collector, "read_facts", wraps=collector.read_facts) as reading:
        for _ in range(5):
            assert list(facts.collect())
    assert reading.call_count == 1


def test_a_fact_has_a_bounded_number_of_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "MAX_SERIES", 3)
    used = next(fact for fact in monitoring.FACTS if fact.name == "luthier_slots_used")
    rows = [(f"t{n}", "a100", n) for n in range(6)]
    assert monitoring.bounded(used, rows) == [
        ("t5", "a100", 5),
        ("t4", "a100", 4),
        ("(others)", "(others)", 6),
    ]


def test_no_fact_reads_the_jobs_that_have_ended() -> None:
    """The plan of each, for a table of jobs of which nearly all have ended: by a partial index, never all rows."""
    tenant = factories.tenant("busy", quotas={"a100": 8})
    model = factories.job(of=tenant, state=State.COMPLETED)
    columns = [
        field.column for field in Job._meta.concrete_fields if field.column not in ("id", "lease_token")
    ]
    listed = ", ".join(f'"{column}"' for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO jobs_job (id, {listed}) SELECT 'x' || lpad(n::text, 11, '0'), {listed}"
            " FROM jobs_job, generate_series(1, 30000) AS n WHERE id = %s",
            [model.pk],
        )
        cursor.execute(
            "UPDATE jobs_job SET settled = true, next_reconcile_at = NULL WHERE state = 'COMPLETED'"
        )
        cursor.execute("VACUUM ANALYZE jobs_job")
        for fact in monitoring.FACTS:
            cursor.execute(f"EXPLAIN {fact.sql}", monitoring.VALUES)
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "Seq Scan on jobs_job " not in plan, (fact.name, plan)
    assert value(scraped(), "luthier_queue_length") == 0


def test_every_web_process_keeps_one_registry() -> None:
    """Prometheus refuses a scrape in which a series is listed twice."""
    text = views.generate_latest(views.REGISTRY).decode()
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
