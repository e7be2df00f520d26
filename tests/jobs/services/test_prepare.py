"""Code is hashed and stored before the transaction of its job; what changed in between is refused within it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from jobs import blobs
from jobs.errors import JobForbidden, SpecInvalid, TenantSuspended, UploadNotFound
from jobs.models import Blob, Job, Runtime, Upload
from jobs.services import clone_accept, clone_prepare, job_accept, job_prepare, job_submit
from jobs.spec import to_yaml
from tenants.models import Membership, Tenant
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sklearn")]


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each time that bytes are stored, whether a transaction was open."""
    seen: list[bool] = []
    put = blobs.put

    def watched(*given: Any) -> Blob:
        seen.append(connection.in_atomic_block)
        return put(*given)

    monkeypatch.setattr(blobs, "put", watched)
    return seen


@pytest.mark.django_db(transaction=True)
def test_no_transaction_is_open_while_code_is_stored(people: People, stored: list[bool]) -> None:
    spec = factories.spec()
    api = Api(people.alice)
    assert api.post("/tenants/vision-lab/jobs", spec, Idempotency_Key="k1").status_code == 201
    assert api.post("/tenants/vision-lab/jobs", spec).status_code == 201
    job = Job.objects.first()
    assert job is not None
    other = {"code": {"files": {"train.py": "print('changed')\n"}}}
    assert api.post(f"/jobs/{job.pk}/clone", {"spec": other}, Idempotency_Key="k2").status_code == 202
    browser = Client()
    browser.force_login(people.alice)
    form = {"spec": to_yaml(spec | {"name": "by-form"}), "form_key": "k3"}
    assert browser.post("/t/vision-lab/jobs/new", form).status_code == 302
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("train.py", "print()\n")
    archive.seek(0)
    archive.name = "code.zip"
    assert send(api, archive).status_code == 201
    assert stored == [False] * 3  # that of the other two is known


def send(api: Api, archive: io.BytesIO) -> Any:
    return api.client.post(
        "/api/v1/tenants/vision-lab/uploads",
        {"archive": archive},
        headers=api.headers | {"Idempotency-Key": "k4"},
    )


def lose_the_role(people: People) -> None:
    Membership.objects.filter(user=people.alice).update(role="viewer")


def leave(people: People) -> None:
    Membership.objects.filter(user=people.alice).delete()


def suspend(people: People) -> None:
    Tenant.objects.filter(pk=people.vision.pk).update(state="suspended")


def take_the_priority(people: People) -> None:
    Tenant.objects.filter(pk=people.vision.pk).update(priorities=["low"])


def disable_the_runtime(people: People) -> None:
    Runtime.objects.update(enabled=False)


CHANGES = [
    (lose_the_role, JobForbidden, []),
    (leave, JobForbidden, []),
    (suspend, TenantSuspended, []),
    (take_the_priority, SpecInvalid, ["priority"]),
    (disable_the_runtime, SpecInvalid, ["framework"]),
]


@pytest.mark.parametrize(("change", "error", "fields"), CHANGES)
def test_what_changed_since_the_check_is_refused_with_its_fields(
    people: People, change: Callable[[People], None], error: type[Exception], fields: list[str]
) -> None:
    source = job_submit(user=people.alice, tenant=people.vision, source=factories.spec())
    prepared = job_prepare(user=people.alice, tenant=people.vision, source=factories.spec())
    clone = clone_prepare(user=people.alice, job_id=source.pk)
    change(people)
    for accept in (lambda: job_accept(prepared), lambda: clone_accept(clone)):
        with pytest.raises(error) as caught, transaction.atomic():
            accept()
        details = getattr(caught.value, "details", {})
        assert [each["path"] for each in details.get("errors", [])] == fields
    assert Job.objects.get() == source


@pytest.mark.parametrize(
    ("change", "status"),
    [(lose_the_role, 403), (suspend, 409), (take_the_priority, 400), (disable_the_runtime, 400)],
)
def test_a_change_between_check_and_transaction_is_an_answer_of_the_form_and_of_rest(
    people: People, monkeypatch: pytest.MonkeyPatch, change: Callable[[People], None], status: int
) -> None:
    put = blobs.put

    def meanwhile(*given: Any) -> Blob:
        change(people)
        return put(*given)

    monkeypatch.setattr(blobs, "put", meanwhile)
    browser = Client()
    browser.force_login(people.alice)
    page = browser.post("/t/vision-lab/jobs/new", {"spec": to_yaml(factories.spec()), "form_key": "k"})
    assert page.status_code == 422
    Membership.objects.filter(user=people.alice).update(role="researcher")
    Tenant.objects.filter(pk=people.vision.pk).update(state="active", priorities=["low", "normal"])
    Runtime.objects.update(enabled=True)
    spec = factories.spec(code={"files": {"train.py": "print('other')\n"}})
    answer = Api(people.alice).post("/tenants/vision-lab/jobs", spec, Idempotency_Key="k1")
    assert answer.status_code == status
    assert not Job.objects.exists()


def test_a_repeat_gets_its_first_answer_though_the_check_would_refuse_it_now(people: People) -> None:
    api = Api(people.alice)
    first = api.post("/tenants/vision-lab/jobs", factories.spec(), Idempotency_Key="k1")
    disable_the_runtime(people)
    repeat = api.post("/tenants/vision-lab/jobs", factories.spec(), Idempotency_Key="k1")
    assert (repeat.status_code, repeat.json()["id"]) == (201, first.json()["id"])
    assert api.post("/tenants/vision-lab/jobs", factories.spec(), Idempotency_Key="k2").status_code == 400


def test_an_upload_that_expired_since_the_check_is_named(people: People) -> None:
    blob = blobs.put(people.vision.pk, b"archive")
    upload = Upload.objects.create(tenant=people.vision, owner=people.alice, blob=blob, files=1, bytes=7)
    spec = factories.spec(code={"upload": upload.pk})
    prepared = job_prepare(user=people.alice, tenant=people.vision, source=spec)
    upload.delete()
    with pytest.raises(UploadNotFound) as caught, transaction.atomic():
        job_accept(prepared)
    assert [each["path"] for each in caught.value.details["errors"]] == ["code.upload"]


def test_code_that_was_removed_since_it_was_stored_is_stored_again(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = job_prepare(user=people.alice, tenant=people.vision, source=factories.spec())
    Blob.objects.update(created_at=timezone.now() - timedelta(days=2))
    assert blobs.sweep(timedelta(hours=24)) == 1
    job = job_accept(prepared)
    assert job.code is not None
    assert blobs.is_there(job.code)


def test_a_refusal_of_known_code_leaves_the_transaction_around_it_usable(people: People) -> None:
    job_submit(user=people.alice, tenant=people.vision, source=factories.spec())
    with transaction.atomic():
        with pytest.raises(SpecInvalid):
            job_submit(user=people.alice, tenant=people.vision, source=factories.spec(secrets={"A": "none"}))
        assert Job.objects.count() == 1
