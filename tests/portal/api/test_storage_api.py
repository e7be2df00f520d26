"""Storage by REST: members see what is stored, platform admins set the limit, all that is wrong is named at once."""

from __future__ import annotations

import base64
import io
import re
import tempfile
import zipfile
from typing import IO, Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from jobs import blobs, storage
from jobs.blobs.folder import FolderStore
from jobs.models import Job
from jobs.services.submit import TEXT_BYTES
from portal.api.examples import SPEC_YAML
from tenants.models import AuditEntry, Tenant, User
from tests.portal.api.conftest import JOBS, Api

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


@pytest.fixture
def with_code(installation: object, alice: Api) -> str:
    """A job whose code is stored."""
    made = alice("POST", JOBS, SPEC_YAML, **YAML)
    assert made.status_code == 201
    return str(made.json()["id"])


YAML = {"Content-Type": "application/yaml"}
COMMENT = "\n# " + base64.b85encode(bytes(range(256)) * 500).decode() + "\n"


def test_specs_do_not_fill_the_database_past_the_limit(alice: Api, with_code: str) -> None:
    tenant = Tenant.objects.get(slug="vision-lab")
    Tenant.objects.filter(pk=tenant.pk).update(storage_limit=100_000)
    answers = [alice("POST", JOBS, f"{SPEC_YAML}\n# {n}{COMMENT}", **YAML) for n in range(5)]
    assert [answer.status_code for answer in answers] == [201, 201, 201, 400, 400]
    (error,) = answers[-1].json()["errors"]
    assert (error["path"], error["code"]) == ("", "storage_full")
    assert sum(storage.used_by(tenant.pk).values()) <= 100_000
    assert (
        alice("POST", f"{JOBS}:validate", SPEC_YAML + COMMENT, **YAML).json()["errors"][0]["code"]
        == "storage_full"
    )
    assert alice("POST", JOBS, SPEC_YAML, **YAML).status_code == 201, "one of a usual size"


def test_of_comments_a_part_is_kept_which_says_so(alice: Api, with_code: str) -> None:
    assert alice("POST", JOBS, SPEC_YAML + COMMENT, **YAML).status_code == 201
    kept = Job.objects.latest("pk").spec_text
    assert kept.startswith(SPEC_YAML)
    assert TEXT_BYTES < len(kept) < TEXT_BYTES + 10_000 < len(SPEC_YAML + COMMENT)
    assert re.search(r"\n# The rest, [\d,]+ characters, is not kept.\n$", kept)


def zipped(size: int = 10) -> SimpleUploadedFile:
    """An archive of one file with so many bytes, which are not packed."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.py", b"#" * size)
    return SimpleUploadedFile("code.zip", archive.getvalue())


def full(*_: object, **__: object) -> IO[bytes]:
    return open("/dev/full", "w+b")


@pytest.mark.parametrize(
    ("target", "name", "size"),
    [(FolderStore, "scratch", 10), (tempfile, "TemporaryFile", 3 * 1024**2)],
    ids=["in the store", "before it"],
)
def test_a_disk_that_fills_up_while_an_upload_is_stored_is_said(
    alice: Api, monkeypatch: pytest.MonkeyPatch, target: Any, name: str, size: int
) -> None:
    monkeypatch.setattr(target, name, full)
    refused = alice.client.post(
        "/api/v1/tenants/vision-lab/uploads", {"archive": zipped(size)}, headers=alice.headers
    )
    assert (refused.status_code, refused.json()["code"]) == (503, "disk_full"), refused.content


def test_while_the_disk_is_full_nothing_new_is_accepted_and_it_is_said(
    alice: Api, with_code: str, settings: Any
) -> None:
    settings.LUTHIER_MIN_FREE_DISK = 1 << 60
    before = Job.objects.count()
    files = {"archive": zipped()}
    for refused in (
        alice("POST", JOBS, SPEC_YAML, **YAML),
        alice("POST", f"/jobs/{with_code}/clone", {}),
        alice.client.post("/api/v1/tenants/vision-lab/uploads", files, headers=alice.headers),
    ):
        assert (refused.status_code, refused.json()["code"]) == (503, "disk_full"), refused.content
        assert "at least 1.0 EiB required" in refused.json()["detail"]
    assert alice("POST", f"{JOBS}:validate", SPEC_YAML, **YAML).status_code == 200, "it stores nothing"
    assert Job.objects.count() == before
    browser = Client()
    browser.force_login(User.objects.get(username="alice"))
    page = browser.post("/t/vision-lab/jobs/new", {"spec": SPEC_YAML})
    assert page.status_code == 422
    assert "has too little free space" in page.content.decode()
    settings.LUTHIER_MIN_FREE_DISK = 0
    assert alice("POST", JOBS, SPEC_YAML, **YAML).status_code == 201
