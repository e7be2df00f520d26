"""A GET changes nothing: of each route that answers one, by the statements that the database gets.

The list is made from all routes; what a read may note is named here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.architecture import rows, test_isolation_matrix, test_page_matrix
from tests.architecture.test_isolation_matrix import OPERATIONS, _fresh_throttles
from tests.architecture.test_page_matrix import CELLS, ROUTES, world
from tests.architecture.world import Who, World

__all__ = ["_fresh_throttles", "world"]
pytestmark = pytest.mark.django_db

READERS = (Who.OWNER, Who.MANAGER, Who.ADMIN)
READS = sorted(name for name in OPERATIONS if name.startswith("GET ") and "(?P<rest>" not in name)
PAGES = [(name, page) for name, page in CELLS if not page.post]
NOTED = {
    "insert tenants_auditentry",  # what an admin reads, what is downloaded
    "tenants_user.last_tenant_id",  # where its user lands after the next sign-in
}
ROWS = re.compile(r"\b(INSERT INTO|DELETE FROM)\s+\"?(\w+)")
VALUES = re.compile(
    r"(?<!FOR )(?<!KEY )\bUPDATE\s+\"?(\w+)\"?(?:\s+(?:AS\s+)?\w+)?\s+SET\s+(.*?)(?:\sWHERE|\Z)", re.DOTALL
)
COLUMN = re.compile(r"\"?(\w+)\"?\s*=")


@pytest.mark.parametrize("name", READS)
def test_a_get_of_the_api_changes_nothing(world: World, name: str) -> None:
    route, _ = OPERATIONS[name]
    row = rows.API[name]
    address = route.path(test_isolation_matrix._values(world, row))
    assert set().union(*(written(world, who, address, {}) for who in READERS)) <= NOTED


@pytest.mark.parametrize(("name", "page"), PAGES, ids=[name for name, _ in PAGES])
def test_a_page_changes_nothing_when_it_is_opened(world: World, name: str, page: rows.Page) -> None:
    address = ROUTES[name].path(test_page_matrix._values(world, page))
    data = {name: world.things.get(value, value) for name, value in page.data.items()}
    assert set().union(*(written(world, who, address, data) for who in READERS)) <= NOTED


def written(world: World, who: Who, address: str, data: Mapping[str, Any]) -> set[str]:
    """Tables that got or lost rows, and columns that were changed, while the answer was made; all of it is undone."""
    client = Client()
    with transaction.atomic():
        client.force_login(world.users[who])
        with CaptureQueriesContext(connection) as asked:
            answer = client.get(address, data)
            if answer.streaming:
                b"".join(answer.streaming_content)
        transaction.set_rollback(True)
    return set().union(*(writes(query["sql"]) for query in asked))


def writes(statement: str) -> set[str]:
    added = {f"{how.split()[0].lower()} {table}" for how, table in ROWS.findall(statement)}
    return added | {
        f"{table}.{column}"
        for table, columns in VALUES.findall(statement)
        for column in COLUMN.findall(columns)
    }


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ('INSERT INTO "jobs_job" ("id") VALUES (1)', {"insert jobs_job"}),
        ("WITH gone AS (DELETE FROM jobs_job RETURNING id) SELECT * FROM gone", {"delete jobs_job"}),
        (
            'UPDATE "jobs_job" SET "name" = \'x\', "intent" = \'y\' WHERE 1=1',
            {"jobs_job.name", "jobs_job.intent"},
        ),
        ("UPDATE jobs_job AS j SET name = 'x'", {"jobs_job.name"}),
        ('SELECT 1 FROM "jobs_job" FOR UPDATE', set()),
        ('SELECT 1 FROM "jobs_job" FOR NO KEY UPDATE OF "jobs_job"', set()),
    ],
)
def test_each_way_of_writing_is_seen(statement: str, found: set[str]) -> None:
    assert writes(statement) == found
