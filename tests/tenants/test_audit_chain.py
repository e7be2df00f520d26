"""The chain of the audit log shows each change and each gap, and leaves to retention what retention removes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from django.db import IntegrityError, connection, transaction

from jobs import invariants, retention
from jobs.lifecycle import periodic
from tenants import audit, audit_chain
from tenants.models import AuditEntry, AuditSeal, User
from tenants.retention import Rule
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def alice() -> User:
    return factories.user("alice")


def write(actor: User | None, count: int = 5) -> list[AuditEntry]:
    made = [audit.record(actor=actor, action="job.edit", target=f"job {n}") for n in range(count)]
    audit_chain.seal_new()
    return made


def broken() -> tuple[str, ...]:
    return next((each.found for each in invariants.violations() if each.name == "AuditChain"), ())


def behind_the_guards(statement: str) -> None:
    """As one who has the database to themselves."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(statement)
        cursor.execute("SET session_replication_role = origin")


def test_each_entry_is_sealed_once_and_continues_the_chain(alice: User) -> None:
    entries = write(alice, 3) + write(None, 2)
    audit_chain.seal_new()
    seals = list(AuditSeal.objects.order_by("n"))
    assert [seal.n for seal in seals] == [1, 2, 3, 4, 5]
    assert [seal.entry_id for seal in seals] == [entry.pk for entry in entries]
    assert seals[1].hash == hashlib.sha256(f"2:{seals[0].hash}:{seals[1].digest}".encode()).hexdigest()
    assert broken() == ()


def test_the_periodic_task_seals_and_logs_the_head(alice: User, caplog: pytest.LogCaptureFixture) -> None:
    audit.record(actor=alice, action="job.edit")
    with caplog.at_level("INFO"):
        head = periodic.seal_audit_log({})
        assert periodic.seal_audit_log(head) == head
    logged = [record for record in caplog.records if record.message == "audit log sealed"]
    assert [(record.n, record.hash) for record in logged] == [(1, head["hash"])]  # type: ignore[attr-defined]


DAMAGE = {
    "a changed text": ("UPDATE tenants_auditentry SET reason = 'none' WHERE id = {1}", "changed"),
    "another time": ("UPDATE tenants_auditentry SET at = at - interval '1 hour' WHERE id = {1}", "changed"),
    "another actor": ("UPDATE tenants_auditentry SET actor_id = {bob} WHERE id = {1}", "changed"),
    "another address": ("UPDATE tenants_auditentry SET address = '10.0.0.1' WHERE id = {1}", "changed"),
    "a removed entry": ("DELETE FROM tenants_auditentry WHERE id = {1}", "removed by no retention rule"),
    "a removal that is marked": (
        "UPDATE tenants_auditseal SET removed = true WHERE entry_id = {1};"
        " DELETE FROM tenants_auditentry WHERE id = {1}",
        "1 entries are marked as removed by retention, which recorded 0",
    ),
    "an actor who is hidden": ("UPDATE tenants_auditentry SET actor_id = NULL WHERE id = {1}", "changed"),
    "a removed seal": (
        "DELETE FROM tenants_auditseal WHERE entry_id = {1}", "seal 3 follows seal 1"
    ),
    "an entry and its seal": (
        "DELETE FROM tenants_auditseal WHERE entry_id = {1}; DELETE FROM tenants_auditentry WHERE id = {1}",
        "seal 3 does not continue the seal before it",
    ),
    "a new digest": (
        "UPDATE tenants_auditseal SET digest = repeat('0', 64) WHERE entry_id = {1}",
        "seal 2 does not continue the seal before it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_change_or_a_gap_is_named(alice: User, damage: str) -> None:
    entries = write(alice)
    statement, named = DAMAGE[damage]
    bob = factories.user("bob")
    behind_the_guards(statement.format(*[entry.pk for entry in entries], bob=bob.pk))
    assert any(named in line for line in broken()), broken()


def test_the_guards_refuse_changes_of_seals(alice: User) -> None:
    write(alice)
    for change in (
        lambda: AuditSeal.objects.update(removed=True),
        lambda: AuditSeal.objects.update(digest=""),
        lambda: AuditSeal.objects.all().delete(),
    ):
        change: Callable[[], object]
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            change()


def test_what_retention_removes_leaves_no_gap(alice: User) -> None:
    entries = write(alice)
    behind_the_guards(
        f"UPDATE tenants_auditentry SET at = at - interval '40 days' WHERE id <= {entries[2].pk}"
    )
    behind_the_guards("DELETE FROM tenants_auditseal")
    audit_chain.seal_new()
    assert retention.remove_entries(None, Rule(days=30)) == 3
    audit_chain.seal_new()
    assert broken() == ()
    assert list(AuditSeal.objects.order_by("n").values_list("removed", flat=True)) == [True] * 3 + [False] * 3


def test_retention_keeps_its_own_entries_so_that_a_mark_more_is_found(alice: User) -> None:
    entries = write(alice)
    behind_the_guards(
        "UPDATE tenants_auditentry SET at = at - interval '40 days'; DELETE FROM tenants_auditseal"
    )
    audit_chain.seal_new()
    assert retention.remove_entries(None, Rule(days=30)) == len(entries)
    behind_the_guards("UPDATE tenants_auditentry SET at = at - interval '40 days'; DELETE FROM tenants_auditseal s"
                      " WHERE NOT removed")  # fmt: skip
    last = write(alice, 1)
    assert retention.remove_entries(None, Rule(days=30)) == 0
    assert broken() == ()
    behind_the_guards(
        f"UPDATE tenants_auditseal SET removed = true WHERE entry_id = {last[0].pk};"
        f" DELETE FROM tenants_auditentry WHERE id = {last[0].pk}"
    )
    assert broken() == ("6 entries are marked as removed by retention, which recorded 5",)


def test_an_actor_is_forgotten_with_the_user_and_never_before(alice: User) -> None:
    write(alice)
    with transaction.atomic(), connection.cursor() as cursor:
        AuditEntry.objects.update(actor=None)
        with pytest.raises(IntegrityError, match="append-only"):
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        transaction.set_rollback(True)
    assert broken() == ()
    alice.delete()
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert set(AuditEntry.objects.values_list("actor", flat=True)) == {None}
    assert broken() == ()


def test_an_entry_that_is_committed_late_is_sealed_too(alice: User) -> None:
    first = audit.record(actor=alice, action="job.edit")
    behind_the_guards(f"DELETE FROM tenants_auditentry WHERE id = {first.pk}")  # not visible yet
    write(alice)
    AuditEntry(pk=first.pk, actor=alice, action="job.edit").save(force_insert=True)
    audit_chain.seal_new()
    assert AuditSeal.objects.get(entry_id=first.pk).n == 6
    assert broken() == ()
