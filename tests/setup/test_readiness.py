"""/readyz says which part cannot work, and why; doctor says what to do about it."""

import re
import socket
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import closing, contextmanager
from datetime import timedelta
from io import StringIO
from ipaddress import ip_interface, ip_network
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.core.management import call_command
from django.db import connections
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from gpu_scheduler.clusters.base import ClusterBusy, Isolation
from jobs import clusters
from jobs.models import SCHEDULER, ClusterNode, PeriodicTask, SchedulingLease, Worker
from portal.health import checks, deadline, diagnosis
from portal.settings.embedded import layout
from tenants import audit, audit_chain, audit_forward
from tenants.models import AuditEntry, SecurityNotice
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)  # each part is asked on a connection of its own


@pytest.fixture(autouse=True)
def long_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Healthy parts answer in time on a busy machine, too."""
    monkeypatch.setattr(checks, "ANSWER_S", 60.0)
    monkeypatch.setattr(checks, "FRESH_S", 0.0)
    monkeypatch.setattr(checks, "FAILING_FRESH_S", 0.0)


@contextmanager
def bound_after(sound: int) -> Iterator[None]:
    """Gives the frozen parts 1 s once so many have answered: what is sound may take its time on a busy machine."""

    def wait_for(asked: Collection[Future[checks.HealthCheck]], timeout: float) -> None:
        list(islice(as_completed(asked, timeout=60), sound))
        wait(asked, timeout=timeout)

    with mock.patch.object(checks, "ANSWER_S", 1.0), mock.patch.object(deadline, "wait_for", wait_for):
        yield


@pytest.fixture
def worker() -> Worker:
    """A worker that lives, and has just completed a pass of the scheduling cycle."""
    PeriodicTask.objects.update_or_create(name=PeriodicTask.CYCLE, defaults={"done_at": Now()})
    return Worker.objects.create(name="worker-1")


@contextmanager
def mute(listener: socket.socket) -> Iterator[threading.Event]:
    """Accepts every connection and never answers, like a stopped process. Yields: a connection was made."""
    called, callers = threading.Event(), []

    def take() -> None:
        while True:
            try:
                callers.append(listener.accept()[0])
            except OSError:
                return
            called.set()

    listener.listen()
    taker = threading.Thread(target=take)
    taker.start()
    try:
        yield called
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for caller in callers:
            caller.close()
        taker.join()
        until_asked()


def until_asked() -> None:
    """Wait for the questions that were left behind, so that no other test gets their answer."""
    for _ in range(6_000):
        if not any(thread.name.startswith("check-") for thread in threading.enumerate()):
            return
        time.sleep(0.01)
    pytest.fail("a question is still under way")


def database_at(address: tuple[str, int]) -> mock._patch_dict:
    """From now on every new connection goes there, and is not given up; this thread keeps the one it has."""
    host, port = address
    default = connections.settings["default"]
    options = default["OPTIONS"] | {"connect_timeout": 120}
    return mock.patch.dict(default, {"HOST": host, "PORT": str(port), "OPTIONS": options})


def test_ready_when_database_workers_and_cluster_answer(client: Client, worker: Worker) -> None:
    answer = client.get("/readyz")
    assert answer.status_code == 200
    parts_ready = {name: part["ready"] for name, part in answer.json()["parts"].items()}
    assert parts_ready == dict.fromkeys(
        ("database", "workers", "scheduler", "cluster", "blobs", "disk"), True
    )
    assert answer.json()["parts"]["workers"]["found"] == "1 alive"


def test_a_store_of_files_that_is_away_is_a_warning(
    client: Client, worker: Worker, settings: Settings
) -> None:
    assert client.get("/readyz").json()["parts"]["blobs"] == {"ready": True, "found": "not checked yet"}
    found = {
        "problem": "Could not connect",
        "away": True,
        "since": "2026-11-25T13:05:00+00:00",
        "back_at": None,
    }
    row = PeriodicTask.objects.create(name="blobs", result=found, done_at=Now())
    answer = client.get("/readyz")
    assert answer.status_code == 200
    sentence = "The store of files has not responded since 2026-11-25 13:05:00 UTC: Could not connect."
    assert answer.json()["parts"]["blobs"] == {"ready": True, "found": "away", "warnings": [sentence]}
    settings.LUTHIER_BLOBS = "/dev/null/blobs"
    store = next(part for part in diagnosis.examine() if part.name == "blobs")
    assert not store.ready
    assert store.warnings == (sentence,)

    PeriodicTask.objects.filter(pk=row.pk).update(
        result=found | {"problem": "", "away": False, "since": None}
    )
    assert client.get("/readyz").json()["parts"]["blobs"] == {"ready": True, "found": "responding"}
    PeriodicTask.objects.filter(pk=row.pk).update(done_at=Now() - timedelta(hours=1))
    assert re.fullmatch(
        r"last checked 36\d\d s ago; unknown since", client.get("/readyz").json()["parts"]["blobs"]["found"]
    )


def test_mails_that_do_not_leave_are_a_warning_of_doctor(settings: Any) -> None:
    assert diagnosis.mail().ready
    assert not diagnosis.mail().warnings
    settings.LUTHIER_SENDS_MAIL, settings.EMAIL_HOST = True, "mail.example"
    notice = SecurityNotice.objects.create(
        user=factories.user("alice"), kind="password.change", to="alice@example.org", try_at=Now()
    )
    assert diagnosis.mail().found == "mail.example, 1 waiting"
    assert not diagnosis.mail().warnings
    SecurityNotice.objects.filter(pk=notice.pk).update(at=Now() - timedelta(hours=2))
    PeriodicTask.objects.create(name="mail", result={"problem": "ConnectionRefusedError: refused"})
    (warning,) = diagnosis.mail().warnings
    assert "2 h" in warning
    assert "refused" in warning
    assert "EMAIL_URL" in warning


def test_an_audit_log_that_does_not_leave_is_a_warning_of_doctor(settings: Any) -> None:
    assert diagnosis.audit_log().found == "kept here only"
    settings.LUTHIER_AUDIT_URL = "https://logs.example/luthier"
    entry = audit.record(actor=None, action="job.edit")
    audit_chain.seal_new()
    assert diagnosis.audit_log().found == "logs.example, 1 to send"
    assert not diagnosis.audit_log().warnings
    long_ago = timezone.now() - timedelta(hours=2)
    AuditEntry(pk=entry.pk + 1, action="job.edit", at=long_ago).save(force_insert=True)
    audit_chain.seal_new()
    to = audit_forward.mark(settings.LUTHIER_AUDIT_URL)
    result = {"to": to, "places": {to: 1}, "problem": "it answered with 401"}
    PeriodicTask.objects.create(name="forward", result=result)
    assert diagnosis.audit_log().found == "logs.example, 1 to send"
    (warning,) = diagnosis.audit_log().warnings
    assert "2 h" in warning
    assert "it answered with 401" in warning
    assert "LUTHIER_AUDIT_AUTHORIZATION" in warning
    assert diagnosis.audit_log() in diagnosis.examine()
    PeriodicTask.objects.update(result=result | {"places": {to: 3}})
    (warning,) = diagnosis.audit_log().warnings
    assert "seal 3 of the audit log was sent, and its chain ends at 2" in warning


def test_a_worker_without_the_address_that_others_have_is_a_warning_of_doctor(settings: Any) -> None:
    settings.LUTHIER_AUDIT_URL = None
    now_s = audit_forward.database_s()
    result = {"places": {"a mark": 0}, "named": {"a mark": now_s}, "to": "a mark", "problem": ""}
    row = PeriodicTask.objects.create(name="forward", result=result)
    audit.record(actor=None, action="job.edit")
    assert diagnosis.audit_log().found == "an address that other processes have, 1 to send"
    assert not diagnosis.audit_log().warnings
    PeriodicTask.objects.update(result=result | {"lacked_at": now_s})
    (warning,) = diagnosis.audit_log().warnings
    assert "a worker runs without LUTHIER_AUDIT_URL" in warning
    row.refresh_from_db()
    PeriodicTask.objects.update(result=row.result | {"named": {"a mark": now_s - audit_forward.NAMED_S}})
    assert diagnosis.audit_log().found == "kept here only"


def test_a_disk_below_its_minimum_is_a_warning_because_running_jobs_continue(
    client: Client, worker: Worker, settings: Any
) -> None:
    settings.LUTHIER_MIN_FREE_DISK = 2**60
    answer = client.get("/readyz")
    part = answer.json()["parts"]["disk"]
    assert (answer.status_code, part["ready"]) == (200, True)
    (warning,) = part["warnings"]
    assert "at least 1.0 EiB required. No job starts until there is room" in warning
    (found,) = (check for check in diagnosis.examine() if check.name == "disk")
    assert found.warnings == (warning,), "doctor says the same"


def test_without_workers_not_ready(client: Client) -> None:
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer["Retry-After"] == "2"
    assert "no worker was seen" in answer.json()["parts"]["workers"]["reason"]
    assert answer.json()["parts"]["database"]["ready"] is True


def test_a_scheduler_alone_brings_no_job_on(client: Client) -> None:
    Worker.objects.create(name=f"{SCHEDULER}scheduler@host")
    assert client.get("/readyz").json()["parts"]["workers"]["ready"] is False


def test_a_worker_that_was_killed_does_not_count(client: Client) -> None:
    Worker.objects.create(name="worker-1", seen_at=Now() - timedelta(seconds=checks.WORKER_SILENCE_S + 1))
    assert client.get("/readyz").json()["parts"]["workers"]["ready"] is False


def test_a_worker_that_fell_silent_does_not_count(client: Client, worker: Worker) -> None:
    with (
        mock.patch.object(checks, "WORKER_SILENCE_S", 0),
        mock.patch.object(checks.settings, "LUTHIER_TICK_S", 0),
    ):
        assert client.get("/readyz").status_code == 503


def test_living_workers_without_a_completed_pass_are_not_ready(client: Client, worker: Worker) -> None:
    PeriodicTask.objects.update(done_at=Now() - timedelta(seconds=60))
    SchedulingLease.objects.create(name=PeriodicTask.CYCLE, owner=str(worker.pk))
    answer = client.get("/readyz")
    assert answer.status_code == 503
    parts = answer.json()["parts"]
    assert parts["workers"]["ready"] is True
    age = re.fullmatch(r"last pass (\d+) s ago", parts["scheduler"]["found"])
    assert age
    assert int(age[1]) >= 60, "or more, on a busy machine"
    assert parts["scheduler"]["reason"] == (
        f"no scheduling pass has completed for {age[1]} s (limit 30 s), so no job starts;"
        " the pass under way is that of worker-1"
    )


def test_a_pass_that_fails_says_why_and_a_start_without_any_is_not_ready_yet(
    client: Client, worker: Worker
) -> None:
    PeriodicTask.objects.update(done_at=None)
    assert (
        client.get("/readyz").json()["parts"]["scheduler"]["reason"] == "no scheduling pass has completed yet"
    )
    SchedulingLease.objects.create(name=PeriodicTask.CYCLE, problem="ValueError: a fault of ours")
    assert (
        client.get("/readyz").json()["parts"]["scheduler"]["reason"].endswith(": ValueError: a fault of ours")
    )


def test_a_cluster_that_does_not_answer_is_named(client: Client, worker: Worker) -> None:
    driver = mock.Mock(spec=["nodes"])
    driver.nodes.side_effect = ClusterBusy("the node daemon is not there")
    with mock.patch.object(clusters, "current", return_value=driver):
        answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "the node daemon is not there" in answer.json()["parts"]["cluster"]["reason"]


@pytest.mark.parametrize(
    ("cluster", "trusted", "warned"),
    [
        ("local", "127.0.0.1/32", True),
        ("local", "::1/128", True),
        ("local", "0.0.0.0/0", True),
        ("local", "10.0.0.5/32", False),
        ("kubernetes", "127.0.0.1/32", False),
    ],
)
def test_a_proxy_that_each_program_of_the_machine_is_is_warned_of(
    client: Client, worker: Worker, settings: Settings, cluster: str, trusted: str, warned: bool
) -> None:
    settings.LUTHIER_TRUSTED_PROXIES = (ip_network(trusted),)
    with mock.patch.object(checks, "clusters") as found:
        found.current.return_value = mock.Mock(spec=["nodes"])  # as a small cluster
        found.current.return_value.nodes.return_value = [mock.Mock(ready=True)]
        found.isolation.return_value = Isolation(True, "programs are isolated")
        found.capabilities.return_value.node_daemon = cluster == "local"
        warnings = checks.cluster().warnings
    assert [trusted in warning and "LUTHIER_TRUSTED_PROXIES" in warning for warning in warnings] == [
        True
    ] * warned


def test_a_network_that_this_machine_is_in_names_it_too(settings: Settings) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        try:
            unsent.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine is in no network")
        here = ip_interface(f"{unsent.getsockname()[0]}/24")
    beside = next(each for each in here.network.hosts() if each != here.ip)
    settings.LUTHIER_TRUSTED_PROXIES = (here.network, ip_network(here.ip), ip_network(beside))
    with mock.patch.object(checks, "clusters"):
        (warning,) = checks.proxies_that_programs_are()
    assert f"({here.network}, {here.ip}/32)" in warning


class LargeCluster:
    """Too large to list its nodes for anyone who asks whether it responds."""

    def __init__(self) -> None:
        self.problem = ""
        self.frozen_until = threading.Event()
        self.frozen_until.set()

    def probe(self) -> None:
        self.frozen_until.wait(60)
        if self.problem:
            raise ClusterBusy(self.problem)

    def nodes(self) -> None:
        pytest.fail("a stranger has all nodes and pods listed")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> LargeCluster:
    """With two nodes, one of them ready, as the last pass saw them."""
    found = LargeCluster()
    monkeypatch.setattr(clusters, "current", lambda: found)
    monkeypatch.setattr(checks, "PROBED_S", 60.0)
    for name, ready, cluster in (("a", True, "memory"), ("b", False, "memory"), ("c", True, "another")):
        ClusterNode.objects.create(name=name, cluster=cluster, slot_type="cpu", slots=1, ready=ready)
    return found


def cluster_part(client: Client) -> dict[str, Any]:
    part: dict[str, Any] = client.get("/readyz").json()["parts"]["cluster"]
    return part


def test_of_a_large_cluster_its_nodes_are_those_that_the_scheduler_saw(
    client: Client, worker: Worker, large: LargeCluster
) -> None:
    answer = client.get("/readyz")
    assert answer.status_code == 200
    assert re.fullmatch(
        r"memory responds; 1 of 2 nodes ready \d+ s ago", answer.json()["parts"]["cluster"]["found"]
    )
    ClusterNode.objects.update(ready=False)
    assert cluster_part(client)["reason"] == "no node is ready"
    PeriodicTask.objects.update(done_at=Now() - timedelta(seconds=60))
    unknown = {"ready": True, "found": "memory responds; its nodes are unknown"}
    assert cluster_part(client) == unknown, "the part scheduler says why"
    PeriodicTask.objects.update(done_at=None)
    assert cluster_part(client) == unknown
    large.problem = "pods is forbidden"
    assert cluster_part(client)["reason"] == "the memory cluster: pods is forbidden"


def test_a_large_cluster_and_the_database_are_each_named_alone(
    client: Client, worker: Worker, large: LargeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        closed = listener.getsockname()
    with database_at(closed):
        assert cluster_part(client) == {"ready": True, "found": "memory responds; its nodes are unknown"}
    monkeypatch.setattr(checks, "PROBED_S", 0.1)
    large.frozen_until.clear()
    try:
        assert cluster_part(client)["reason"] == "the memory cluster did not respond within 60 s"
    finally:
        large.frozen_until.set()
        until_asked()


def test_a_node_daemon_that_is_frozen_is_named_in_time(
    client: Client, worker: Worker, tmp_path: Path, settings: Settings, request: pytest.FixtureRequest
) -> None:
    settings.LUTHIER_CLUSTER, settings.LUTHIER_NODE_SOCKET = "local", tmp_path / "nodes"
    settings.LUTHIER_NODE_KEY = tmp_path / "key"
    settings.LUTHIER_NODE_KEY.write_text("the-key-of-a-node-daemon-under-test")
    request.addfinalizer(lambda: clusters.use(None))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "nodes"))
    with bound_after(sound=4), mute(listener) as called:
        both = [client.get("/readyz") for _ in range(2)]
        under_way = [thread for thread in threading.enumerate() if thread.name == "check-cluster"]
        assert called.wait(60)
    for answer in both:
        assert answer.status_code == 503
        found = answer.json()["parts"]
        assert found["cluster"]["reason"] == "the local cluster did not respond within 1 s", (
            "not the daemon's 30 s"
        )
        assert (found["database"]["ready"], found["workers"]["ready"]) == (True, True)
    assert len(under_way) == 1, "asking again piles nothing up"


def test_a_database_that_is_frozen_is_named_in_time(client: Client) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with bound_after(sound=2), database_at(listener.getsockname()), mute(listener) as called:
        answer = client.get("/readyz")
        assert called.wait(60)
    assert answer.status_code == 503
    found = answer.json()["parts"]
    assert (
        found["database"]["reason"]
        == found["workers"]["reason"]
        == found["scheduler"]["reason"]
        == "the database did not respond within 1 s"
    )
    assert found["cluster"]["ready"] is True


def test_a_database_that_is_gone_is_a_503_and_no_500(client: Client) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        closed = listener.getsockname()
    with database_at(closed):
        answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "Connection refused" in answer.json()["parts"]["database"]["reason"]
    assert "accepting" not in answer.content.decode(), "one line of it"


def test_learners_that_the_database_does_not_know_are_named_and_fail_nothing(
    client: Client, worker: Worker
) -> None:
    unknown = {"job-6fm5m2zq0abc-1": "2026-11-24T20:00:00+00:00"}
    PeriodicTask.objects.create(name="orphans", result={"unknown": unknown})
    answer = client.get("/readyz")
    assert answer.status_code == 200
    (warning,) = answer.json()["parts"]["workers"]["warnings"]
    assert "job-6fm5m2zq0abc-1" in warning
    assert "left alone for 15 minutes" in warning


def test_a_database_that_is_read_only_counts_as_down(client: Client, worker: Worker) -> None:
    default = connections.settings["default"]
    read_only = {"options": "-c default_transaction_read_only=on"}
    with mock.patch.dict(default, {"OPTIONS": default["OPTIONS"] | read_only}):
        answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["parts"]["database"]["reason"] == "the database is read-only"


def test_migrations_that_wait_are_named(client: Client, worker: Worker) -> None:
    with mock.patch.object(checks, "pending_migrations", return_value=2):
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
    assert "FAILED data" in report
    assert "FAILED workers" in report
    assert "ok     database" in report
    assert "-> Start `manage.py up`." in report


def test_doctor_names_passwords_that_others_may_read(settings: Settings, tmp_path: Path) -> None:
    settings.EMBEDDED = layout(tmp_path)
    settings.EMBEDDED.keys.mkdir(mode=0o700)
    settings.EMBEDDED.valkey_password.touch(0o600)
    assert diagnosis.keys().ready
    settings.EMBEDDED.valkey_password.chmod(0o640)
    found = diagnosis.keys()
    assert str(settings.EMBEDDED.valkey_password) in found.reason
    assert f"chmod -R go= {settings.EMBEDDED.keys}" in found.remedy


def test_every_page_carries_the_policy(client: Client) -> None:
    answer = client.get("/healthz")
    assert "default-src 'self'" in answer["Content-Security-Policy"]
    assert "script-src" not in answer["Content-Security-Policy"]
    assert answer["X-Frame-Options"] == "DENY"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Referrer-Policy"] == "same-origin"


def test_requests_that_come_together_share_one_run_of_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "FRESH_S", 60.0)
    monkeypatch.setattr(checks, "_shared", None)
    runs, all_here = [], threading.Barrier(12)

    def run_checks() -> list[checks.HealthCheck]:
        runs.append(1)
        return [checks.HealthCheck("database", "well")]

    monkeypatch.setattr(checks, "run_checks", run_checks)

    def request(_: int) -> list[checks.HealthCheck]:
        all_here.wait(20)
        return checks.shared_checks()[1]

    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(request, range(12)))
    assert runs == [1]
    assert all(answer == answers[0] for answer in answers)


def test_what_fails_is_looked_at_again_before_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "FRESH_S", 600.0)
    monkeypatch.setattr(checks, "FAILING_FRESH_S", 0.0)
    monkeypatch.setattr(checks, "_shared", None)
    reasons = iter(["no worker", "no worker", "", "never asked for"])

    def run_checks() -> list[checks.HealthCheck]:
        return [checks.HealthCheck("database", "well"), checks.HealthCheck("workers", "0", next(reasons))]

    monkeypatch.setattr(checks, "run_checks", run_checks)
    found = [checks.shared_checks()[1][1].ready for _ in range(5)]
    assert found == [False, False, True, True, True]
