"""Who may read a thing sees all of its fields, but for those that docs/permissions.md names.

Every operation that reads is called by all who may, in one world, and their answers are compared field by field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

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
OF_THE_MOMENT = {"to", "slot_seconds"}
NAMES = ("id", "slug", "username")


@pytest.mark.parametrize("name", READS)
def test_a_field_is_the_same_to_all_who_read_it_or_is_named(world: World, name: str) -> None:
    answers = _answers(world, name)
    wanted, _ = BY_READER.get(name, (set(), ""))
    assert _differing(answers) == wanted


def test_each_row_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "permissions.md").read_text()
    table = text.partition("## Who sees which fields")[2].partition("\n## ")[0]
    assert {row for _, row in BY_READER.values() if f"| {row}" not in table} == set()


def _answers(world: World, name: str) -> list[Any]:
    """What each reader got, as JSON; an operation that sends a file has none."""
    route, row = OPERATIONS[name][0], rows.API[name]
    got = []
    for who in Who:
        if who in LEARNERS or row.rule[who] != rows.IN:
            continue
        answer = _knock(world, who, "GET", route.path(_values(world, row)), row)
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
    return {field for field in shown if field.rpartition(".")[2] not in OF_THE_MOMENT}


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
