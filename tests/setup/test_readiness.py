"""/readyz says which part cannot work, and why; doctor says what to do about it."""

from io import StringIO
from pathlib import Path
from unittest import mock

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from django.test import Client
from pytest_django import Settings

from gpu_scheduler.clusters.base import ClusterBusy
from jobs.models import WORKER_LOCKS, Worker
from portal import parts

pytestmark = pytest.mark.django_db


@pytest.fixture
def worker() -> Worker:
    """A worker that lives: its row, and its lock on a connection."""
    seat = Worker.objects.create(name="worker-1")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [WORKER_LOCKS, seat.pk])
    return seat


def test_ready_when_database_workers_and_cluster_answer(client: Client, worker: Worker) -> None:
    answer = client.get("/readyz")
    assert answer.status_code == 200
    parts_ready = {name: part["ready"] for name, part in answer.json()["parts"].items()}
    assert parts_ready == {"database": True, "workers": True, "cluster": True}
    assert answer.json()["parts"]["workers"]["found"] == "1 alive"


def test_without_workers_not_ready(client: Client) -> None:
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer["Retry-After"] == "2"
    assert "no worker was seen" in answer.json()["parts"]["workers"]["reason"]
    assert answer.json()["parts"]["database"]["ready"] is True


def test_a_worker_that_was_killed_does_not_count(client: Client) -> None:
    Worker.objects.create(name="worker-1")  # seen just now, but nobody holds its lock
    assert client.get("/readyz").json()["parts"]["workers"]["ready"] is False


def test_a_worker_that_fell_silent_does_not_count(client: Client, worker: Worker) -> None:
    with (
        mock.patch.object(parts, "WORKER_SILENCE_S", 0),
        mock.patch.object(parts.settings, "LUTHIER_TICK_S", 0),
    ):
        assert client.get("/readyz").status_code == 503


def test_a_cluster_that_does_not_answer_is_named(client: Client, worker: Worker) -> None:
    with mock.patch.object(parts, "connect") as connect:
        connect.return_value.nodes.side_effect = ClusterBusy("the node daemon is not there")
        answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "the node daemon is not there" in answer.json()["parts"]["cluster"]["reason"]


def test_a_database_that_does_not_answer_is_a_503_and_no_500(client: Client) -> None:
    gone = OperationalError("connection refused\nIs the server running?")
    with mock.patch.object(parts.connection, "cursor", side_effect=gone):
        answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "connection refused" in answer.json()["parts"]["database"]["reason"]
    assert "running?" not in answer.content.decode()


def test_migrations_that_wait_are_named(client: Client, worker: Worker) -> None:
    with mock.patch.object(parts, "pending_migrations", return_value=2):
        answer = client.get("/readyz")
    assert "2 migrations have not been applied" in answer.json()["parts"]["database"]["reason"]


def test_health_pages_change_nothing(client: Client) -> None:
    assert client.post("/readyz").status_code == 405
    assert client.post("/healthz").status_code == 405


def test_doctor_names_what_is_wrong_with_its_remedy(settings: Settings, tmp_path: Path) -> None:
    settings.LUTHIER_DATA = tmp_path / "missing"
    settings.LUTHIER_PUBLIC_URL = "http://127.0.0.1:9"
    output = StringIO()
    with pytest.raises(SystemExit) as end:
        call_command("doctor", stdout=output)
    assert end.value.code == 1
    report = output.getvalue()
    assert "WRONG  data" in report
    assert "WRONG  workers" in report
    assert "ok     database" in report
    assert "-> Start `manage.py up`." in report


def test_every_page_carries_the_policy(client: Client) -> None:
    answer = client.get("/healthz")
    assert "default-src 'self'" in answer["Content-Security-Policy"]
    assert "script-src" not in answer["Content-Security-Policy"]
    assert answer["X-Frame-Options"] == "DENY"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Referrer-Policy"] == "same-origin"
