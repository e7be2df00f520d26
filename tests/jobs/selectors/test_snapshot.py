"""What the scheduler sees is one moment of the database."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection

from jobs.selectors import snapshot as selector
from jobs.selectors.snapshot import database_now, snapshot
from tenants.models import Quota
from tests import factories


@pytest.mark.django_db(transaction=True)
def test_what_changes_while_the_rows_are_read_is_for_the_next_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a job that ends meanwhile holds its slots and not its quota, and all that wait get another reason."""
    tenant = factories.tenant(quotas={"cpu": 8})

    def change() -> None:
        Quota.objects.filter(tenant=tenant).update(limit=3)
        connection.close()

    def read_late(**narrowed: Any) -> Any:
        other = threading.Thread(target=change)
        other.start()
        other.join()
        return original(**narrowed)

    original = selector.quota_uses
    monkeypatch.setattr(selector, "quota_uses", read_late)
    assert [quota.limit for quota in snapshot(nodes=(), now=database_now()).quotas] == [8]
    monkeypatch.setattr(selector, "quota_uses", original)
    assert [quota.limit for quota in snapshot(nodes=(), now=database_now()).quotas] == [3]
