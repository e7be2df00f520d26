"""Storage by REST: members see what is stored, platform admins set the limit, all that is wrong is named at once."""

from __future__ import annotations

from jobs import blobs
from tenants.models import AuditEntry, Tenant
from tests.portal.api.conftest import Api

PATH = "/tenants/vision-lab/storage"
REASON = {"reason": "Their grant pays for it"}


def test_a_tenant_without_a_limit_sees_what_it_stores(carol: Api) -> None:
    blobs.put(Tenant.objects.get(slug="vision-lab").pk, b"code")
    found = carol.get(PATH).json()
    by = {"logs": 0, "metrics": 0, "checkpoints": 0, "results": 0, "code": 4}
    assert found | {"etag": ""} == {"limit_bytes": None, "used_bytes": 4, "by": by, "etag": ""}


def test_a_limit_is_set_audited_and_not_if_it_changed_meanwhile(admin: Api, carol: Api) -> None:
    seen = carol.get(PATH)
    done = admin.put(PATH, {"limit_bytes": 2**40, **REASON}, If_Match=seen["ETag"])
    assert (done.status_code, done.json()["limit_bytes"]) == (200, 2**40)
    stale = admin.put(PATH, {"limit_bytes": 5, **REASON}, If_Match=seen["ETag"])
    assert (stale.status_code, stale.json()["etag"]) == (412, done["ETag"])
    assert admin.put(PATH, {"limit_bytes": 2**40, **REASON}).status_code == 200
    entry = AuditEntry.objects.get(action="storage.change")
    assert (entry.details, entry.reason) == ({"from": None, "to": 2**40}, REASON["reason"])
    assert admin.put(PATH, {"limit_bytes": None, **REASON}).json()["limit_bytes"] is None


def test_a_wrong_limit_changes_nothing_and_all_that_is_wrong_is_named(admin: Api) -> None:
    for wrong in (-1, 2**53, "1Gi", True):
        answer = admin.put(PATH, {"limit_bytes": wrong, "reason": " "})
        assert answer.status_code == 400
        assert {each["path"] for each in answer.json()["errors"]} == {"limit_bytes", "reason"}, wrong
    assert Tenant.objects.get(slug="vision-lab").storage_limit is None


def test_a_member_cannot_set_the_limit(alice: Api) -> None:
    assert alice.put(PATH, {"limit_bytes": None, **REASON}).status_code == 403
