"""The packages of a job: read where its spec says, chosen once, and the same for every later attempt and clone."""

from __future__ import annotations

import io
import tarfile
import zipfile
from unittest.mock import Mock

import pytest

from gpu_scheduler.clusters.base import GangReport
from jobs import blobs
from jobs.errors import SpecInvalid
from jobs.lifecycle import leases, observation, reconcile, transitions
from jobs.models import Job, Upload
from jobs.services import job_check, job_clone, job_submit
from tests import factories
from tests.jobs.conftest import People

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sklearn")]
TEXT = "# of the project\nlower>=1\nupper  # why\n"


def zipped(**files: str) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/"), text)
    return target.getvalue()


def rolled(**files: str) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo("./" + name.replace("__", "/"))
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return target.getvalue()


def uploaded(people: People, content: bytes) -> dict[str, object]:
    blob = blobs.put(people.vision.pk, content)
    upload = Upload.objects.create(tenant=people.vision, owner=people.alice, blob=blob, files=1, bytes=7)
    return factories.spec(code={"upload": upload.pk}, requirements={"file": "conf/needs"})


@pytest.mark.parametrize("pack", [zipped, rolled])
def test_the_requirements_of_an_upload_are_read_when_the_job_is_submitted(
    people: People, pack: object
) -> None:
    spec = uploaded(people, pack(a="1", conf__needs=TEXT))  # type: ignore[operator]
    job = job_submit(user=people.alice, tenant=people.vision, source=spec)
    assert Job.objects.get(pk=job.pk).packages == {"requirements": ["lower>=1", "upper"]}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ({"a": "1"}, "requirements_not_found"),
        ({"conf__needs": "--index-url http://x\n-e .\n"}, "bad_requirement"),
        ({"conf__needs": "x" * 300_000}, "requirements_not_found"),
    ],
)
def test_what_is_wrong_with_the_file_of_an_upload_is_said_before_anything_is_written(
    people: People, content: dict[str, str], code: str
) -> None:
    spec = uploaded(people, zipped(**content))
    with pytest.raises(SpecInvalid) as caught:
        job_check(user=people.alice, tenant=people.vision, source=spec)
    assert {(each["path"], each["code"]) for each in caught.value.details["errors"]} == {
        ("requirements.file", code)
    }
    assert not Job.objects.exists()


@pytest.mark.parametrize("wrong", [{"framework": "torch"}, {"name": ""}])
def test_what_is_wrong_with_the_file_of_an_upload_is_said_along_with_all_else(
    people: People, wrong: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = uploaded(people, zipped(conf__needs="-e .\n")) | wrong

    def named() -> set[str]:
        with pytest.raises(SpecInvalid) as caught:
            job_check(user=people.alice, tenant=people.vision, source=spec)
        return {each["path"] for each in caught.value.details["errors"]}

    assert named() == {*wrong, "requirements.file"}
    monkeypatch.setattr(blobs, "open", Mock(side_effect=blobs.StoreUnavailable))
    assert named() == {*wrong}, "what is known is said"
    with pytest.raises(blobs.StoreUnavailable):
        job_check(user=people.alice, tenant=people.vision, source=uploaded(people, zipped(conf__needs="x")))


def test_versions_are_kept_from_the_first_report_on_and_later_ones_change_nothing(people: People) -> None:
    job = job_submit(user=people.alice, tenant=people.vision, source=factories.spec(requirements=["upper"]))
    lease = leases.claim(job.pk, "w1")
    assert lease is not None
    for lock in (("lower==1.0", "upper==1.5"), ("upper==9.0",)):
        rows = observation.load(job.pk)
        assert rows is not None
        transitions.note_lock(rows, lease, GangReport("job", (), lock=lock).lock)
    event = job.events.get(reason="packages_chosen")
    assert event.message == "Packages chosen: upper==1.5, lower==1.0. Its attempts use these versions."
    assert event.numbers == {"packages": ["lower==1.0", "upper==1.5"]}
    assert Job.objects.get(pk=job.pk).packages == {
        "requirements": ["upper"],
        "lock": ["lower==1.0", "upper==1.5"],
    }


def test_the_packages_that_a_job_requests_are_named_before_the_dozens_that_these_need(people: People) -> None:
    job = job_submit(
        user=people.alice, tenant=people.vision, source=factories.spec(requirements=["Torch_Vision[io]>=0.2"])
    )
    lease = leases.claim(job.pk, "w1")
    rows = observation.load(job.pk)
    assert lease is not None
    assert rows is not None
    needed = [f"nvidia-{n}==1" for n in range(30)]
    transitions.note_lock(rows, lease, (*needed, "torch-vision==0.3"))
    event = job.events.get(reason="packages_chosen")
    assert event.message.startswith("Packages chosen: torch-vision==0.3, nvidia-0==1, ")
    assert event.message.endswith(" and 11 more. Its attempts use these versions.")


def test_the_next_attempt_is_launched_with_the_versions_of_the_first(people: People) -> None:
    job = factories.job(of=people.vision, owner=people.alice, state="DEPLOYING")
    Job.objects.filter(pk=job.pk).update(packages={"requirements": ["upper"], "lock": ["upper==1.5"]})
    rows = observation.load(job.pk)
    assert rows is not None
    spec = reconcile._gang_to_launch(rows, reconcile.runtimes_of([rows]).get(rows.job.pk))
    assert (list(spec.requirements), list(spec.lock)) == (["upper"], ["upper==1.5"])
    assert (spec.runtime, spec.runtime_requirements, spec.python) == (job.spec["framework"], None, None)


def test_a_clone_has_the_versions_of_its_source_unless_it_asks_for_something_else(people: People) -> None:
    source = job_submit(
        user=people.alice, tenant=people.vision, source=factories.spec(requirements=["upper"])
    )
    Job.objects.filter(pk=source.pk).update(packages={"requirements": ["upper"], "lock": ["upper==1.5"]})
    same = job_clone(user=people.alice, job_id=source.pk, changes={"env": {"LR": "1"}})
    assert same.packages == {"requirements": ["upper"], "lock": ["upper==1.5"]}
    other = job_clone(user=people.alice, job_id=source.pk, changes={"requirements": ["upper>1"]})
    assert other.packages == {"requirements": ["upper>1"]}
    plain = job_clone(user=people.alice, job_id=source.pk, changes={"python": "3.12"})
    assert plain.packages == {"requirements": ["upper"]}
    assert (plain.spec["python"], "framework" in plain.spec) == ("3.12", False)


def test_a_clone_reads_the_file_of_its_sources_code_though_the_upload_has_expired(people: People) -> None:
    source = job_submit(
        user=people.alice, tenant=people.vision, source=uploaded(people, zipped(conf__needs=TEXT))
    )
    Upload.objects.all().delete()
    assert job_clone(user=people.alice, job_id=source.pk).packages == {"requirements": ["lower>=1", "upper"]}
