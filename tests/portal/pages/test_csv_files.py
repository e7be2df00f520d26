"""Tables as CSV are sent while they are read, and hold no more than a block of lines."""

from __future__ import annotations

import csv
import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection
from django.http import StreamingHttpResponse
from django.test import Client, RequestFactory
from django.test.client import AsyncRequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.models import UsageDay
from portal.pages import csv_files
from portal.pages.admin import quota_history
from portal.streaming import TABLES_LIMITS
from tenants.models import QuotaChange, Tenant, User
from tests import factories
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db


def test_the_head_leaves_before_a_row_is_read_and_rows_leave_in_blocks() -> None:
    read: list[int] = []

    def rows() -> Iterator[list[object]]:
        yield ["n", "text"]
        for n in range(csv_files.LINES + 1):
            read.append(n)
            yield [n, 'a "b", c']

    answer = csv_files.csv_file(RequestFactory().get("/"), "table.csv", rows())
    assert isinstance(answer, StreamingHttpResponse)
    assert answer["Content-Disposition"] == 'attachment; filename="table.csv"'
    blocks = iter(answer)
    assert next(blocks) == b"n,text\r\n"
    assert read == []
    assert next(blocks).startswith(b'0,"a ""b"", c"\r\n')
    assert len(read) == csv_files.LINES
    assert len(list(blocks)) == 1


def test_a_user_has_a_bounded_number_of_tables_under_way(alice: User) -> None:
    request = AsyncRequestFactory().get("/")
    request.user = alice
    open_ones = [
        csv_files.csv_file(request, "table.csv", iter([["n"]])) for _ in range(TABLES_LIMITS.per_user)
    ]
    refused = csv_files.csv_file(request, "table.csv", iter([["n"]]))
    assert (refused.status_code, refused["Content-Type"]) == (429, "text/plain; charset=utf-8")
    for each in open_ones:
        each.close()
    assert csv_files.csv_file(request, "table.csv", iter([["n"]])).status_code == 200


def test_a_month_is_sent_while_it_is_written(signed_in: SignIn, lab: Tenant, alice: User) -> None:
    with CaptureQueriesContext(connection) as queries:
        answer = signed_in(alice).get(f"/t/{lab.slug}/usage.csv")
        assert answer.streaming
        assert not any("jobs_usageday" in one["sql"] for one in queries.captured_queries)
        assert answer.getvalue().startswith(b"day,user,type,slot_hours_used")
        assert sum("jobs_usageday" in one["sql"] for one in queries.captured_queries) == 1


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("zoë.张", "zoë.张"),
        ("+1", "'+1"),
        ("@team", "'@team"),
        ('=1+"a",b', '"\'=1+""a"",b"'),
        ("two\nlines", '"two\nlines"'),
    ],
)
def test_a_user_of_any_name_is_one_cell_of_a_month_and_no_formula(
    signed_in: SignIn, lab: Tenant, alice: User, name: str, cell: str
) -> None:
    used = 7200 / 7
    day = timezone.now().date().replace(day=1) - timedelta(days=1)
    sums = {"used": used, "waited": 0, "lost": 0.36, "opportunistic": 0}
    UsageDay.objects.create(tenant=lab, owner=factories.user(name), slot_type="cpu", day=day, **sums)
    text = signed_in(alice).get(f"/t/{lab.slug}/usage.csv?month={day:%Y-%m}").getvalue().decode()
    figures = f"{used / 3600:.4f},0.0000,0.0001"
    assert text.partition("\r\n")[2] == f"{day},{cell},cpu,{figures}\r\n"


def test_a_history_of_quotas_is_read_in_batches(
    signed_in: SignIn, lab: Tenant, admin: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that comes meanwhile is newer than all of them, and moves none from one batch to the next."""
    monkeypatch.setattr(quota_history, "CSV_BATCH", 2)
    monkeypatch.setattr(csv_files, "LINES", 2)

    def changed(n: int) -> None:
        terms = {"gpu_type": "cpu", "old_limit": n - 1, "new_limit": n, "reason": f"to {n}"}
        QuotaChange.objects.create(tenant=lab, actor=admin, change_set=uuid.uuid4(), **terms)

    for n in range(1, 6):
        changed(n)
    client: Client = signed_in(admin)
    with CaptureQueriesContext(connection) as queries:
        blocks = iter(client.get("/admin-console/quota-history.csv"))
        first = [next(blocks), next(blocks)]
        assert sum(one["sql"].endswith("LIMIT 2") for one in queries.captured_queries) == 1
        changed(6)
        lines = b"".join([*first, *blocks]).decode().splitlines()
    assert [line.split(",")[6] for line in lines[1:]] == ["5", "4", "3", "2", "1"]


def test_a_history_of_quotas_has_no_formula_and_its_cells_under_their_names(
    signed_in: SignIn, lab: Tenant, admin: User
) -> None:
    terms = {"weight": [1, 2]}
    change = {
        "gpu_type": "-x",
        "old_limit": 1,
        "new_limit": 2,
        "used_then": 3,
        "reason": "=1+1",
        "terms": terms,
    }
    QuotaChange.objects.create(tenant=lab, actor=factories.user("@eve"), change_set=uuid.uuid4(), **change)
    text = signed_in(admin).get("/admin-console/quota-history.csv").getvalue().decode()
    [row] = csv.DictReader(text.splitlines())
    assert (row["who"], row["type"], row["reason"]) == ("'@eve", "'-x", "'=1+1")
    assert (row["tenant"], row["old_limit"], row["new_limit"], row["used_then"]) == (lab.slug, "1", "2", "3")
    assert row["terms"] == "weight 1 to 2"
