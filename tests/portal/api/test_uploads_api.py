"""Uploads by REST: what is taken as a job's code, what is refused, and what a clone keeps."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from jobs import archives
from jobs.models import Job, Upload
from portal.api.examples import SPEC
from tenants.models import Membership
from tenants.roles import Role
from tests import factories
from tests.architecture.rows import UPLOAD
from tests.jobs.conftest import People
from tests.portal.api.conftest import JOBS, Api, submit

pytestmark = pytest.mark.usefixtures("installation")


UPLOAD_KIND = {"Content-Type": "multipart/form-data; boundary=matrix"}


def test_an_upload_becomes_a_job_s_code(alice: Api) -> None:
    sent = alice("POST", "/tenants/vision-lab/uploads", UPLOAD, **UPLOAD_KIND)
    assert (sent.status_code, sent.json()["files"]) == (201, 1)
    job = submit(alice, code={"upload": sent.json()["id"]})
    assert Job.objects.get(pk=job["id"]).code is not None


def test_an_upload_of_another_tenant_is_a_missing_one(alice: Api, bob: Api) -> None:
    sent = alice("POST", "/tenants/vision-lab/uploads", UPLOAD, **UPLOAD_KIND).json()
    answered = set()
    for upload in (sent["id"], "000000000000"):
        answer = bob.post("/tenants/nlp-research/jobs", SPEC | {"code": {"upload": upload}})
        assert (answer.status_code, answer.json()["code"]) == (400, "upload_not_found")
        (wrong,) = answer.json()["errors"]
        assert (wrong["path"], wrong.pop("got")) == ("code.upload", upload)
        answered.add(str({**answer.json(), "request_id": "", "errors": [wrong]}))
    assert len(answered) == 1


def test_validating_finds_a_missing_upload_beside_everything_else(alice: Api) -> None:
    lost = SPEC | {"code": {"upload": "000000000000"}}
    verdict = alice.post(f"{JOBS}:validate", lost).json()
    assert not verdict["valid"]
    assert [(each["path"], each["code"]) for each in verdict["errors"]] == [
        ("code.upload", "upload_not_found")
    ]
    both = lost | {"resources": {"learners": 9, "cpus": 1}}
    for refused in (alice.post(f"{JOBS}:validate", both), alice.post(JOBS, both)):
        assert {each["path"] for each in refused.json()["errors"]} == {"code.upload", "resources.learners"}
    sent = alice("POST", "/tenants/vision-lab/uploads", UPLOAD, **UPLOAD_KIND).json()
    assert alice.post(f"{JOBS}:validate", SPEC | {"code": {"upload": sent["id"]}}).json()["valid"]


def test_a_clone_keeps_its_code_after_the_upload_is_gone_and_is_judged_so(alice: Api, people: People) -> None:
    sent = alice("POST", "/tenants/vision-lab/uploads", UPLOAD, **UPLOAD_KIND).json()
    job = submit(alice, code={"upload": sent["id"]})
    Upload.objects.all().delete()
    spec = SPEC | {"code": {"upload": sent["id"]}}
    assert not alice.post(f"{JOBS}:validate", spec).json()["valid"]
    assert alice.post(f"{JOBS}:validate?cloned_from={job['id']}", spec).json()["valid"]
    assert alice.post(f"/jobs/{job['id']}/clone", {}).status_code == 202
    foreign = factories.job(of=people.nlp, owner=people.bob).pk
    assert alice.post(f"{JOBS}:validate?cloned_from={foreign}", spec).status_code == 404
    Membership.objects.create(user=people.alice, tenant=people.nlp, role=Role.VIEWER)
    assert alice.post(f"{JOBS}:validate?cloned_from={foreign}", spec).status_code == 404


def test_an_edited_clone_is_judged_by_the_requirements_in_the_code_that_it_keeps(alice: Api) -> None:
    content = archives.pack([("train.py", "1"), ("conf/needs", "lower>=1")])
    form = {"file": SimpleUploadedFile("x.tar.gz", content)}
    sent = alice.client.post("/api/v1/tenants/vision-lab/uploads", form, headers=alice.headers).json()
    code = {"code": {"upload": sent["id"]}}
    job = submit(alice, **code, requirements={"file": "conf/needs"})
    validated = f"{JOBS}:validate?cloned_from={job['id']}"
    edited = SPEC | code | {"name": "edited", "requirements": {"file": "conf/needs"}}
    assert alice.post(validated, edited).json()["errors"] == []
    missing = alice.post(validated, edited | {"requirements": {"file": "conf/other"}}).json()
    assert [(each["path"], each["code"]) for each in missing["errors"]] == [
        ("requirements.file", "requirements_not_found")
    ]


def test_an_archive_that_climbs_out_is_refused_with_every_name_that_does(alice: Api) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("../x", "a.py", "/y"):
            archive.writestr(name, "1")
    answer = alice.client.post(
        "/api/v1/tenants/vision-lab/uploads",
        {"archive": SimpleUploadedFile("x.zip", packed.getvalue())},
        headers=alice.headers,
    )
    answered = answer.json()
    assert (answer.status_code, answered["code"]) == (400, "archive_unsafe_path")
    assert answered["detail"] == (
        "The archive was rejected: ../x: the name leaves its folder with .. (2 problems in total)."
    )
    assert [(error["path"], error["got"]) for error in answered["errors"]] == [
        ("archive", "../x"),
        ("archive", "/y"),
    ]


def test_what_is_no_archive_is_refused(alice: Api) -> None:
    answer = alice.client.post(
        "/api/v1/tenants/vision-lab/uploads",
        {"archive": SimpleUploadedFile("x.zip", b"PK\x03\x04nonsense")},
        headers=alice.headers,
    )
    assert answer.status_code == 400
    assert answer.json()["code"].startswith("archive_")


@pytest.mark.parametrize(
    ("parts", "path", "code"),
    [
        ({"archive": True, "note": "x"}, "note", "unknown_field"),
        ({"archive": True, "second": True}, "second", "unknown_field"),
        ({"archve": True}, "archve", "unknown_field"),
        ({"archve": True}, "archive", "required"),
        ({"archive": "no file"}, "archive", "invalid"),
        ({"archive": [True, True]}, "archive", "repeated"),
        ({"archive": True, "file": True}, "file", "unknown_field"),
        ({}, "archive", "required"),
    ],
)
def test_an_upload_s_form_has_one_part_and_no_other(alice: Api, parts: Any, path: str, code: str) -> None:
    def filled(part: Any) -> Any:
        if isinstance(part, list):
            return [filled(each) for each in part]
        return SimpleUploadedFile("x.tar.gz", archives.pack([])) if part is True else part

    form = {name: filled(part) for name, part in parts.items()}
    answer = alice.client.post("/api/v1/tenants/vision-lab/uploads", form, headers=alice.headers)
    assert answer.status_code == 400
    assert (path, code) in [(each["path"], each["code"]) for each in answer.json()["errors"]]
    assert not Upload.objects.exists()


def test_a_part_named_file_is_taken_for_the_archive(alice: Api) -> None:
    form = {"file": SimpleUploadedFile("x.tar.gz", archives.pack([("train.py", "1")]))}
    answer = alice.client.post("/api/v1/tenants/vision-lab/uploads", form, headers=alice.headers)
    assert answer.status_code == 201
    assert Upload.objects.get().pk == answer.json()["id"]
