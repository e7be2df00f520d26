"""Who may read a thing sees all of its fields, but for those that docs/permissions.md names.

Every operation that reads is called by all who may, in one world, and their answers are compared field by field: what
is a list there has an item, but for those in EMPTY. Where one kind of caller alone may read, nothing can differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Dismissal, FairnessHour, FairnessShare, Job, UsageDay
from jobs.selectors.fairness import hour_of
from jobs.services.sharing import SharePermission, job_share
from jobs.states import State
from tenants.services.quotas import Change, quota_changes_apply
from tests import factories
from tests.architecture import rows
from tests.architecture.test_isolation_matrix import OPERATIONS, _fresh_throttles, _knock, _values, world
from tests.architecture.world import LEARNERS, Who, World
from tests.documents import ROOT

__all__ = ["_fresh_throttles", "world"]
pytestmark = pytest.mark.django_db

READS = sorted(
    name
    for name in OPERATIONS
    if name.startswith("GET ") and "(?P<rest>" not in name and not name.startswith("GET me")
)
BY_READER = {
    "GET cluster/nodes": ({f"items[].jobs[].{key}" for key in ("job", "name", "tenant")}, "other tenants' jobs"),
    "GET tenants": ({"items[].role", "items[].permissions"}, "`role` and `permissions` of a tenant"),
    "GET tenants/<str:t>": ({"role", "permissions"}, "`role` and `permissions` of a tenant"),
}  # fmt: skip
"""Operation -> the fields that differ, and the row of "Who sees which fields" that says so."""
OF_THE_MOMENT = {"to", "slot_seconds", "items[].end", "items[].estimate.at", "items[].estimate.from"}
"""By their last name, or by the whole one."""
EMPTY = {
    "tags", "data", "keep", "metrics", "basis", "image_digests", "platform_stops", "gaps", "lines", "errors_at",
    "series", "applies", "shares", "used_by",
}  # fmt: skip
"""Lists that may be empty in this world: nothing compares their items."""
OF_ALL = ("GET openapi.json", "GET schema/job")
"""They describe the interface, and hold no data."""
NAMES = ("id", "slug", "username")


@pytest.fixture(scope="module", autouse=True)
def filled(world: World) -> str:
    """Something in each list that only time or a scheduler fills; the id of a job that waits."""
    alice, here = world.users[Who.OWNER], world.tenant
    waits = factories.job(owner=alice, of=here, state=State.QUEUED, name="secret-waiting", slots=65)
    for guest, permission in (("gina", SharePermission.VIEW), ("olga", SharePermission.OPERATE)):
        job_share(user=alice, job_id=waits.pk, username=guest, permission=permission)
    quota_changes_apply(
        user=world.users[Who.ADMIN],
        changes=[Change(here.slug, "cpu", 9)],
        reason="more",
        capacity={"cpu": 64},
        overcommit=1,
    )
    now = timezone.now()
    failed_job = Job.objects.get(pk=world.things["failed"])
    Dismissal.objects.bulk_create(
        Dismissal(user=user, job=failed_job, tenant=here) for user in world.users.values()
    )
    UsageDay.objects.create(
        tenant=here, day=(now - timedelta(days=1)).date(), owner=alice, slot_type="cpu", used=60, waited=5, lost=1,
        first_waits=[5.0],
    )  # fmt: skip
    here.created_at = now - timedelta(days=60)  # so that part of its time is unknown
    here.save(update_fields=["created_at"])
    for n in range(1, 4):
        hour = FairnessHour.objects.create(at=hour_of(now) - timedelta(hours=n))
        FairnessShare.objects.create(
            hour=hour, tenant=here, slot_type="cpu", guaranteed=8, share=8, received=4, borrowed=0, lent=0,
            shortfall=4,
        )  # fmt: skip
    return waits.pk


@pytest.mark.parametrize("name", READS)
def test_a_field_is_the_same_to_all_who_read_it_or_is_named(world: World, filled: str, name: str) -> None:
    answers = _answers(world, name, filled)
    wanted, _ = BY_READER.get(name, (set(), ""))
    assert _differing(answers) == wanted
    if len(answers) > 1 and name not in OF_ALL:
        assert {each for each in _always_empty(answers) if each.rpartition(".")[2] not in EMPTY} == set()


def test_each_row_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "permissions.md").read_text()
    table = text.partition("## Who sees which fields")[2].partition("\n## ")[0]
    assert {row for _, row in BY_READER.values() if f"| {row}" not in table} == set()


def _answers(world: World, name: str, waits: str) -> list[Any]:
    """What each reader got, as JSON; an operation that sends a file has none."""
    route, row = OPERATIONS[name][0], rows.API[name]
    things = _values(world, row) | ({"job_id": waits} if name.endswith("/suggestions") else {})
    got = []
    for who in Who:
        if who in LEARNERS or row.rule[who] != rows.IN:
            continue
        answer = _knock(world, who, "GET", route.path(things), row)
        assert answer.status_code == 200, f"{who}: {answer.status_code}"
        if not answer.streaming and "json" in answer.headers.get("Content-Type", ""):
            got.append(answer.json())
    return got


def _differing(answers: list[Any]) -> set[str]:
    """Fields, with [] for the items of lists, that are not the same in all answers that have the thing."""
    values: dict[tuple[str, ...], set[str]] = {}
    things: dict[tuple[str, ...], list[set[str]]] = {}
    for answer in answers:
        for place, value in _walk(answer, ()):
            if isinstance(value, dict):
                things.setdefault(place, []).append(set(value))
            else:
                values.setdefault(place, set()).add(repr(value))
    found = {place for place, seen in values.items() if len(seen) > 1}
    for place, keys in things.items():
        found |= {(*place, key) for key in set.union(*keys) - set.intersection(*keys)}
    shown = {".".join(part for part in place if part).replace(".[", "[") for place in map(_general, found)}
    return {field for field in shown if not {field, field.rpartition(".")[2]} & OF_THE_MOMENT}


def _always_empty(answers: list[Any]) -> set[str]:
    """Lists that have no item in any answer."""
    found: dict[str, bool] = {}
    for answer in answers:
        for place, has_items in _lists(answer, ""):
            found[place] = found.get(place, False) or has_items
    return {place for place, has_items in found.items() if not has_items}


def _lists(value: Any, place: str) -> Iterator[tuple[str, bool]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _lists(part, f"{place}.{key}".removeprefix("."))
    elif isinstance(value, list):
        yield place, bool(value)
        for part in value:
            yield from _lists(part, f"{place}[]")


def _general(place: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("[]" if part.startswith("[") else part for part in place)


def _walk(value: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each thing and each field with its place; items that have a name are found by it, others by their position."""
    if isinstance(value, dict):
        yield place, value
        for key, part in value.items():
            yield from _walk(part, (*place, key))
    elif isinstance(value, list) and all(isinstance(part, dict) for part in value):
        for n, part in enumerate(value):
            name = next((part[key] for key in NAMES if part.get(key)), n)
            yield from _walk(part, (*place, f"[{name}"))
    else:
        yield place, value
