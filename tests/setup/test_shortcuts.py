"""The suite's own shortcuts leave a test what Django would: an empty database, and the static files."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client, TransactionTestCase

from jobs.models import Job, JobEvent
from tenants.models import AuditEntry, Tenant, User
from tenants.services.accounts import account_create
from tests import factories
from tests.shortcuts import KEPT

ICON = settings.STATICFILES_DIRS[0] / "favicon.svg"


@pytest.mark.django_db(transaction=True)
def test_a_transactional_test_leaves_no_row_whatever_guards_it() -> None:
    tenant = factories.tenant()
    factories.job(of=tenant)
    account_create(user=factories.user(is_superuser=True), tenant=tenant, name="ci")
    kinds = (Tenant, User, Job, JobEvent, AuditEntry)
    assert all(model.objects.exists() for model in kinds)
    described = rows(*KEPT)
    TransactionTestCase()._fixture_teardown()
    tables = set(connection.introspection.django_table_names(only_existing=True))
    assert not any(rows(*(tables - KEPT)).values())
    assert rows(*KEPT) == described
    assert all(described.values())


def rows(*tables: str) -> dict[str, int]:
    """How many each has."""
    found = {}
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"SELECT count(*) FROM {connection.ops.quote_name(table)}")
            (found[table],) = cursor.fetchone()
    return found


@pytest.mark.django_db
def test_every_client_finds_the_static_files() -> None:
    for _ in range(2):
        answer = Client().get("/static/favicon.svg")
        assert answer.getvalue() == ICON.read_bytes()
        answer.close()
