"""The audit log leaves for another system: every entry, in the order of the chain, whatever that system does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.management import call_command
from django.db import connection, connections, transaction

from jobs import retention
from jobs.models import PeriodicTask
from jobs.selectors.installation import audit_taken
from jobs.serialization import json_bytes
from portal.settings import values
from tenants import audit, audit_chain, audit_forward, outgoing
from tenants.models import AuditEntry, User
from tenants.pauses import PAUSE_S
from tenants.retention import Rule
from tests import factories
from tests.certificates import untrusted_server
from tests.log_collector import LogCollector
from tests.meanwhile import Meanwhile

pytestmark = pytest.mark.django_db


@pytest.fixture
def collector(settings: LazySettings) -> Iterator[LogCollector]:
    with LogCollector() as one:
        settings.LUTHIER_AUDIT_URL = one.url
        yield one


def write(count: int, details: dict[str, Any] | None = None) -> list[int]:
    """Sealed entries, by their ids."""
    made = [
        audit.record(actor=None, action="job.edit", target=str(n), details=details).pk for n in range(count)
    ]
    audit_chain.seal_new()
    return made


def send(before: dict[str, Any]) -> dict[str, Any]:
    return audit_forward.send_new(before, json_bytes, lambda _: None)


def place(done: dict[str, Any], address: str) -> int:
    return int(done["places"][audit_forward.mark(address)])


def ids(collector: LogCollector) -> list[int]:
    return [entry["id"] for entry in collector.entries]


def test_each_entry_is_sent_once_as_the_export_has_it(
    collector: LogCollector, settings: LazySettings
) -> None:
    settings.LUTHIER_AUDIT_AUTHORIZATION = "Bearer of-the-collector"
    made = write(3, {"of": {"name": "Ünïcode\nline"}})
    done = send({})
    assert (place(done, collector.url), done["problem"], done["next_in_s"]) == (3, "", None)
    assert place(send(done), collector.url) == 3
    out = StringIO()
    call_command("audit", stdout=out)
    ((lines, headers),) = collector.requests
    assert [json_bytes(line).decode() for line in lines] == out.getvalue().splitlines()
    assert headers["Authorization"] == "Bearer of-the-collector"
    assert headers["Content-Type"] == "application/x-ndjson"
    assert collector.asked == ["/logs?stream=luthier"], "nothing is asked where nothing is new"
    more = write(2)
    send(done)
    assert ids(collector) == made + more


@pytest.mark.django_db(transaction=True)
def test_what_is_committed_late_is_sent_although_a_later_id_was(collector: LogCollector) -> None:
    """By ids it would be passed over: `--after` the last id does not have it, `--after-seal` does."""
    later: list[int] = []

    def another() -> None:
        later.extend(write(1))

    with transaction.atomic():
        late = audit.record(actor=None, action="user.disable").pk
        other = Meanwhile(another)
        other.begin()
        other.result()
        done = send({})
        assert ids(collector) == later
        assert later[0] > late
    audit_chain.seal_new()
    send(done)
    assert ids(collector) == [*later, late]

    def printed(*arguments: str) -> str:
        out = StringIO()
        call_command("audit", *arguments, stdout=out)
        return out.getvalue()

    assert printed("--after", str(later[0])) == ""
    assert f'"id":{late},' in printed("--after-seal", str(place(done, collector.url)))
    connections.close_all()


@pytest.mark.parametrize("status", [302, 401, 413, 503])
def test_what_is_refused_is_kept_and_sent_again(
    collector: LogCollector, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    made = write(2)
    collector.status = status
    first = send({})
    assert (place(first, collector.url), first["failures"], first["next_in_s"]) == (0, 1, PAUSE_S)
    assert first["problem"] == f"it answered with {status}"
    assert "the audit log was not sent" in caplog.text
    second = send(first)
    assert second["next_in_s"] == 2 * PAUSE_S
    assert len(collector.asked) == 2, "no redirect is followed"
    collector.status = 204
    done = send(second)
    assert (place(done, collector.url), done["failures"], done["problem"]) == (2, 0, "")
    assert ids(collector) == made


def test_an_answer_that_is_lost_sends_an_entry_twice_and_none_is_left_out(collector: LogCollector) -> None:
    made = write(2)
    collector.behavior = "cut"
    done = send({})
    assert place(done, collector.url) == 0
    collector.behavior = "answer"
    send(done)
    assert ids(collector) == made * 2


def test_a_system_that_drips_is_left_after_its_time(
    collector: LogCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_forward, "LONGEST_S", 0.3)
    write(1)
    collector.behavior = "drip"
    began = time.monotonic()
    assert send({})["failures"] == 1
    assert time.monotonic() - began < 30, "and not for as long as it drips"


def test_nothing_is_sent_to_one_that_cannot_prove_its_name(settings: LazySettings, tmp_path: Path) -> None:
    write(1)
    with untrusted_server(tmp_path) as (port, received):
        settings.LUTHIER_AUDIT_URL = f"https://localhost:{port}/logs"
        settings.LUTHIER_AUDIT_AUTHORIZATION = "Bearer of-the-collector"
        assert "CERTIFICATE_VERIFY_FAILED" in send({})["problem"]
    assert received == []


def test_much_goes_in_requests_of_bounded_size(
    collector: LogCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_forward, "BATCH", 4)
    monkeypatch.setattr(audit_forward, "BATCH_BYTES", 2000)
    made = write(6) + write(2, {"text": "x" * 1500}) + write(1, {"text": "x" * 5000}) + write(1)
    assert place(send({}), collector.url) == 10
    assert [len(lines) for lines, _ in collector.requests] == [4, 2, 1, 1, 1, 1]
    assert ids(collector) == made


def test_a_run_ends_in_time_and_the_next_continues(
    collector: LogCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_forward, "BATCH", 1)
    monkeypatch.setattr(audit_forward, "SENDS_S", 0)
    made = write(2)
    done = send({})
    assert (place(done, collector.url), done["next_in_s"]) == (1, 0.0)
    send(done)
    assert ids(collector) == made


def test_another_address_gets_all_of_it_and_off_keeps_the_place(
    collector: LogCollector, settings: LazySettings
) -> None:
    made = write(2)
    done = send({})
    settings.LUTHIER_AUDIT_URL = None
    done = send(done)
    settings.LUTHIER_AUDIT_URL = collector.url
    done = send(done)
    assert ids(collector) == made
    with LogCollector() as second:
        settings.LUTHIER_AUDIT_URL = second.url
        done = send(done)
        assert ids(second) == made
    settings.LUTHIER_AUDIT_URL = collector.url
    done = send(done)
    assert ids(collector) == made, "workers with different addresses repeat nothing"
    assert collector.url not in str(done), "its query may hold a token"


def test_what_retention_has_removed_is_passed_over(collector: LogCollector) -> None:
    first, second, third = write(3)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL luthier.audit_retention = 'on'")
        cursor.execute("UPDATE tenants_auditseal SET removed = true WHERE entry_id = %s", [second])
        cursor.execute("DELETE FROM tenants_auditentry WHERE id = %s", [second])
    assert place(send({}), collector.url) == 3
    assert ids(collector) == [first, third]


def test_how_much_waits_and_for_how_long(db: None, alice: User) -> None:
    write(2)
    audit.record(actor=alice, action="job.edit")  # not sealed yet
    count, age_s = audit_forward.waiting(1)
    assert count == 2
    assert 0 <= age_s < 600
    audit_chain.seal_new()
    assert audit_forward.waiting(1)[0] == 2
    assert audit_forward.waiting(3) == (0, 0.0)


def test_what_was_not_sent_outlives_its_retention_rule(
    collector: LogCollector, settings: LazySettings
) -> None:
    (sent,) = write(1)
    PeriodicTask.objects.create(name="forward", result=send({}))
    (kept,) = write(1)
    unsealed = audit.record(actor=None, action="job.edit").pk
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = 'replica'")
        cursor.execute("UPDATE tenants_auditentry SET at = at - interval '90 days'")
        cursor.execute("SET LOCAL session_replication_role = 'origin'")
    old = Rule(days=30)
    assert retention.remove_entries(None, old) == 1
    assert not AuditEntry.objects.filter(pk=sent).exists()
    assert AuditEntry.objects.filter(pk__in=[kept, unsealed]).count() == 2
    settings.LUTHIER_AUDIT_URL = None
    assert retention.remove_entries(None, old) == 0, "a process without the address knows that others have it"
    nothing = send(known())
    assert known() | {"next_in_s": None, "lacked_at": nothing["lacked_at"]} == nothing, (
        "and takes nothing back"
    )
    name_again(collector.url, days_ago=4)
    assert retention.remove_entries(None, old) == 2, "given up for days: nothing is kept for anyone"
    assert "lacked_at" not in send(known())


def test_what_one_of_two_addresses_lacks_stays_while_a_worker_had_it(
    collector: LogCollector, settings: LazySettings
) -> None:
    """While a setting is rolled out, workers have different addresses."""
    write(1)
    first = send({})
    write(1)
    with LogCollector() as second:
        settings.LUTHIER_AUDIT_URL = second.url
        PeriodicTask.objects.create(name="forward", result=send(first))
        assert audit_taken() == 1
        name_again(collector.url, days_ago=4)
        assert audit_taken() == 2
        settings.LUTHIER_AUDIT_URL = "https://another.example/"
        assert audit_taken() == 0, "this process's own counts in any case"


def known() -> dict[str, Any]:
    return dict(PeriodicTask.objects.get(name="forward").result)


def name_again(address: str, *, days_ago: float) -> None:
    """As if a worker had had it last at this time."""
    before = known()
    at = audit_forward.database_s() - days_ago * 24 * 3600
    named = before["named"] | {audit_forward.mark(address): at}
    PeriodicTask.objects.filter(name="forward").update(result=before | {"named": named})


def test_what_waits_is_counted_up_to_a_limit(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_forward, "COUNTED", 2)
    monkeypatch.setattr(audit_forward, "WAITING", audit_forward.WAITING.replace("LIMIT 100000", "LIMIT 2"))
    write(4)
    assert audit_forward.waiting(0)[0] == 2


def test_an_entry_that_no_rule_removed_is_missed_loudly(
    collector: LogCollector, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = write(3)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = 'replica'")
        cursor.execute("DELETE FROM tenants_auditentry WHERE id = %s", [second])
        cursor.execute("SET LOCAL session_replication_role = 'origin'")
    send({})
    assert ids(collector) == [first, third]
    (line,) = [each for each in caplog.records if each.message == "entries of the audit log are missing"]
    assert (line.levelname, line.__dict__["seals"]) == ("ERROR", [2])


def test_a_mark_that_retention_did_not_set_hides_no_removal(
    collector: LogCollector, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = write(3)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = 'replica'")
        cursor.execute("UPDATE tenants_auditseal SET removed = true WHERE entry_id = %s", [second])
        cursor.execute("DELETE FROM tenants_auditentry WHERE id = %s", [second])
        cursor.execute("SET LOCAL session_replication_role = 'origin'")
    send({})
    assert ids(collector) == [first, third]
    (line,) = [each for each in caplog.records if each.message == "entries of the audit log are missing"]
    assert line.__dict__["marks"] == "1 entries are marked as removed by retention, which recorded 0"


def test_a_run_that_made_progress_begins_its_pauses_again(
    collector: LogCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_forward, "BATCH", 1)
    write(2)
    collector.status = 503
    failed = send(send({}))
    assert failed["failures"] == 2
    collector.statuses = [200, 503]
    done = send(failed)
    assert (place(done, collector.url), done["failures"]) == (1, 1)
    assert done["next_in_s"] == PAUSE_S


def test_what_was_taken_is_kept_whatever_fails_later(
    collector: LogCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_forward, "BATCH", 1)
    write(2)
    kept: list[dict[str, Any]] = []

    def encode(entry: dict[str, Any]) -> bytes:
        if entry["seal"]["n"] == 2:
            raise LookupError
        return json_bytes(entry)

    with pytest.raises(LookupError):
        audit_forward.send_new({}, encode, kept.append)
    assert [place(each, collector.url) for each in kept] == [1]


def test_an_answer_may_take_longer_than_a_step_of_the_connection(
    collector: LogCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "STEP_S", 0.5)
    made = write(1)
    collector.after_s = 1.5
    assert send({})["problem"] == ""
    assert ids(collector) == made


def test_a_name_that_is_not_resolved_in_time_is_a_failure(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(outgoing, "STEP_S", 0.1)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60) and [])
    settings.LUTHIER_AUDIT_URL = "http://logs.example/"
    write(1)
    assert "was not resolved in time" in send({})["problem"]
    over.set()


def test_each_address_of_a_host_is_tried(collector: LogCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is of a kind that this machine does not have, as IPv6 may be, and none listens at the second."""
    made, found = write(1), socket.getaddrinfo
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        first = [
            (12345, socket.SOCK_STREAM, 0, "", ("::1", 1)),
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", silent.getsockname()),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **more: first + found(*given, **more))
        assert send({})["problem"] == ""
    assert ids(collector) == made


def test_a_host_that_no_name_could_be_is_a_failure(settings: LazySettings) -> None:
    settings.LUTHIER_AUDIT_URL = f"http://{'l' * 64}.example/"
    write(1)
    assert "is no name of a host" in send({})["problem"]


@pytest.mark.parametrize(
    "address",
    [
        "logs.example",
        "ftp://logs.example",
        "https://",
        "https://logs.example:port/x",
        "https://user@logs.example/",
        "https://logs..example/",
        "https://.logs.example/",
        f"https://{'l' * 64}.example/",
        "https://logs.example/a b",
        "https://lögs.example/",
        "https://logs.example/#top",
    ],
)
def test_an_address_that_nothing_could_be_sent_to_is_refused_at_the_start(address: str) -> None:
    """A run would end with an error of Python's instead of a problem that doctor shows."""
    with pytest.raises(ValueError):
        values.collector(address)


@pytest.mark.parametrize(
    "address",
    [
        "https://[::1]:8080/a?b=c",
        "http://127.0.0.1/",
        "https://logs.example",
        "https://logs.example./in/",
        f"https://{'l' * 63}.example/?to=/",
    ],
)
def test_an_address_may_be_any_other_and_is_used_to_the_character(address: str) -> None:
    assert values.collector(address) == address


@pytest.fixture
def alice() -> User:
    return factories.user("alice")
