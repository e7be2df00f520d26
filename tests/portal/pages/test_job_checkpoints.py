"""The Checkpoints tab: from each one that counts, resume, clone, and fetch its files."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from jobs import blobs
from jobs.models import Blob, Checkpoint, CheckpointFile, Job, Runtime
from jobs.spec import to_yaml
from jobs.states import Intent, State
from portal.pages import job as job_page
from tenants.models import Tenant, User
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db


def saved(job: Job, *, n: int = 1, files: int = 1, **fields: object) -> Checkpoint:
    made = factories.checkpoint(job, **({"n": n, "step": 40 * n} | fields))
    for number in range(files):
        blob = blobs.put(job.tenant_id, f"weights {made.n} {number}".encode())
        CheckpointFile.objects.create(
            checkpoint=made, tenant=job.tenant, path=f"model {number}.bin", blob=blob
        )
    return made


def halted(lab: Tenant, alice: User) -> Job:
    Runtime.objects.get_or_create(slug="sklearn", defaults={"title": "scikit-learn"})
    return factories.job(of=lab, owner=alice, state=State.HALTED, intent=Intent.HALT, name="original")


def actions(client: Client, job: Job) -> dict[int, set[str]]:
    """What each row offers, by the number of its checkpoint."""
    page = markup(client.get(f"/t/vision-lab/jobs/{job.pk}/checkpoints"))
    found = {}
    for row in re.findall(
        r"<tr[^>]*>(<td class=\"number num tertiary hide-on-phone\">.*?)</tr>", page, re.DOTALL
    ):
        number = int(re.findall(r">(\d+)<", row)[0])
        found[number] = set(re.findall(r"(Resume from|Clone from|Files)<", row))
    return found


def test_each_checkpoint_that_counts_can_be_resumed_cloned_and_opened(
    signed_in: SignIn, lab: Tenant, alice: User
) -> None:
    job = halted(lab, alice)
    for n, state in enumerate(("COMMITTED", "CORRUPT", "UPLOADING", "COMMITTED"), start=1):
        saved(job, n=n, state=state)
    every = {"Resume from", "Clone from", "Files"}
    assert actions(signed_in(alice), job) == {1: every, 2: set(), 3: set(), 4: every}


def test_the_checkpoint_that_a_resume_takes_is_first_even_if_another_came_later(
    signed_in: SignIn, lab: Tenant, alice: User
) -> None:
    """A periodic save and the halt's are uploaded side by side: the later step may have the lower number."""
    job = halted(lab, alice)
    for n, step in ((1, 650), (2, 702), (3, 700)):
        saved(job, n=n, step=step)
    client = signed_in(alice)
    assert list(actions(client, job)) == [2, 3, 1]
    assert "Files of checkpoint 2" in markup(client.get(f"/t/vision-lab/jobs/{job.pk}/checkpoints"))


def test_what_a_row_offers_is_what_the_state_and_the_viewer_allow(
    signed_in: SignIn, lab: Tenant, alice: User, carol: User
) -> None:
    job, ended = halted(lab, alice), factories.job(of=lab, owner=alice, state=State.FAILED)
    saved(job)
    saved(ended)
    assert actions(signed_in(carol), job) == {1: {"Files"}}
    assert actions(signed_in(alice), ended) == {1: {"Clone from", "Files"}}


def test_a_suspended_tenant_s_job_offers_nothing_that_would_be_refused(
    signed_in: SignIn, lab: Tenant, alice: User, admin: User
) -> None:
    """REST's allowed_actions stay those of the state: docs/api.md."""
    job, failed = halted(lab, alice), factories.job(of=lab, owner=alice, state=State.FAILED)
    for one in (job, failed):
        saved(one)
    big = factories.job(of=lab, owner=alice, learners=6, slots=2)
    client, console = signed_in(alice), signed_in(admin)
    path = "/admin-console/tenants/vision-lab/state"
    for state, offered in (("suspended", False), ("active", True)):
        console.post(path, {"state": state, "reason": "The invoice of October is open."})
        for shown, tab in (
            (job, ""),
            (job, "/checkpoints"),
            (failed, ""),
            (failed, "/checkpoints"),
            (big, ""),
        ):
            page = markup(client.get(f"/t/vision-lab/jobs/{shown.pk}{tab}"))
            assert ("/jobs/new?from=" in page) is offered, (state, shown.state, tab)
            assert ("The invoice of October is open." in page) is not offered
        resume = f'action="/t/vision-lab/jobs/{job.pk}/resume"'
        assert (resume in markup(client.get(f"/t/vision-lab/jobs/{job.pk}"))) is offered
        assert {"resume", "clone"} <= set(client.get(f"/api/v1/jobs/{job.pk}").json()["allowed_actions"])


def test_the_files_of_the_newest_or_of_the_chosen_checkpoint_can_be_fetched(
    signed_in: SignIn, lab: Tenant, alice: User
) -> None:
    job = halted(lab, alice)
    for n in (1, 2):
        saved(job, n=n)
    client = signed_in(alice)
    for query, n in (("", 2), ("?files=1", 1), ("?files=9", 2)):
        page = markup(client.get(f"/t/vision-lab/jobs/{job.pk}/checkpoints{query}"))
        (link,) = re.findall(r'href="(/api/v1/[^"]*/files/[^"]*)" download', page)
        assert link == f"/api/v1/jobs/{job.pk}/checkpoints/{n}/files/model%200.bin"
        assert b"".join(client.get(link)) == f"weights {n} 0".encode()


def test_of_very_many_files_the_first_are_listed_and_the_rest_counted(
    signed_in: SignIn, lab: Tenant, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_page, "FILES_SHOWN", 2)
    job = halted(lab, alice)
    saved(job, files=5)
    page = markup(signed_in(alice).get(f"/t/vision-lab/jobs/{job.pk}/checkpoints"))
    assert page.count(" download>") == 2
    assert "3 more files: the manifest lists them all." in page


def test_a_clone_from_a_checkpoint_starts_from_it(signed_in: SignIn, lab: Tenant, alice: User) -> None:
    job = halted(lab, alice)
    saved(job, n=1, step=1200)
    saved(job, n=2, step=1300)
    client = signed_in(alice)
    page = markup(client.get(f"/t/vision-lab/jobs/{job.pk}/checkpoints"))
    address = f"/t/vision-lab/jobs/new?from={job.pk}&checkpoint=1"
    assert f'href="{address.replace("&", "&amp;")}"' in page
    form = markup(client.get(address))
    assert "from<b>checkpoint 1, step 1,200</b>" in form
    assert f'action="{address.replace("&", "&amp;")}"' in form
    sent = client.post(address, {"spec": to_yaml(job.spec).replace("original", "again")})
    assert sent.status_code == 302
    clone = Job.objects.get(name="again")
    assert (clone.cloned_from, clone.resume_from.step) == (job, 1200)


def test_a_clone_from_a_deleted_checkpoint_is_flagged_in_the_form_and_refused_on_submit(
    signed_in: SignIn, lab: Tenant, alice: User
) -> None:
    job = halted(lab, alice)
    saved(job, n=2)
    client = signed_in(alice)
    for n in (0, 1):
        address = f"/t/vision-lab/jobs/new?from={job.pk}&checkpoint={n}"
        form = client.get(address)
        assert f"The job has no valid checkpoint {n}. Valid: 2." in markup(form)
        refused = client.post(address, {"spec": to_yaml(job.spec)})
        assert refused.status_code == 422
        assert f'checkpoint={n}"' in markup(refused)
    assert Job.objects.get() == job


@pytest.mark.parametrize(("state", "word"), [(State.PROCESSING, "Uploading"), (State.HALTED, "Incomplete")])
def test_nothing_is_uploading_once_its_attempt_is_over(
    signed_in: SignIn, lab: Tenant, alice: User, state: State, word: str
) -> None:
    job = factories.job(of=lab, owner=alice, state=state)
    saved(job, state="UPLOADING")
    page = markup(signed_in(alice).get(f"/t/vision-lab/jobs/{job.pk}/checkpoints"))
    assert [one for one in ("Uploading", "Incomplete") if f"</svg>{one}<" in page] == [word]


@pytest.mark.parametrize(("attempt", "shown"), [(2, True), (1, False)])
def test_an_upload_says_how_much_is_stored(
    signed_in: SignIn, lab: Tenant, alice: User, attempt: int, shown: bool
) -> None:
    job = factories.job(of=lab, owner=alice, state=State.PROCESSING, attempt=2)
    large = blobs.begin(lab.pk, "0" * 64, 5 * 1024**3)
    Blob.objects.filter(pk=large.pk).update(received=1024**3)
    made = factories.checkpoint(job, n=1, step=40, attempt=attempt, state="UPLOADING")
    CheckpointFile.objects.create(checkpoint=made, tenant=lab, path="weights", blob=large)
    client = signed_in(alice)
    tab = markup(client.get(f"/t/vision-lab/jobs/{job.pk}/checkpoints"))
    assert "5.0 GiB" in tab
    assert ("1.0 GiB stored" in tab) == shown
    overview = markup(client.get(f"/t/vision-lab/jobs/{job.pk}"))
    assert ("uploading, 1.0 GiB of 5.0 GiB stored" in overview) == shown


def test_the_strip_counts_the_job_and_its_tenant(signed_in: SignIn, lab: Tenant, alice: User) -> None:
    job = halted(lab, alice)
    factories.checkpoint(job, n=1, state="DROPPED", bytes=1024)
    factories.checkpoint(job, n=2, step=20, bytes=1024)
    factories.checkpoint(halted(lab, alice), bytes=3072)
    factories.checkpoint(factories.job(state=State.COMPLETED), bytes=7777)
    page = markup(signed_in(alice).get(f"/t/vision-lab/jobs/{job.pk}/checkpoints"))
    strip = page.split('<dl class="kpis"', 1)[1].split("</dl>")[0]
    text = " ".join(re.sub(r"<[^>]*>", " ", strip).split())
    assert "This job 1.0 KiB 1 kept of 2 saved" in text
    assert "Tenant vision-lab 4.0 KiB of checkpoints, this job 25%" in text


def test_a_removed_checkpoint_stays_as_a_row_that_says_why(
    signed_in: SignIn, lab: Tenant, alice: User
) -> None:
    job = halted(lab, alice)
    for n in range(1, 24):
        factories.checkpoint(job, n=n, step=10 * n, state="DROPPED", bytes=1024)
    factories.checkpoint(job, n=24, step=240, bytes=1024)
    page = markup(signed_in(alice).get(f"/t/vision-lab/jobs/{job.pk}/checkpoints"))
    rows = [" ".join(re.sub(r"<[^>]*>", " ", row).split()) for row in page.split("<tr")[2:]]
    assert re.match(r".*24 step 240 .* Verified .* Resume from", rows[0])
    deleted = [row for row in rows if "Deleted by retention: 3" in row]
    assert len(deleted) == 20
    assert re.match(r".*23 step 230 1 — Deleted", deleted[0])
    assert "Files" not in deleted[0]
    assert "3 more are no longer kept" in page


def test_an_upload_that_was_given_up_is_incomplete_and_not_deleted_by_retention(
    signed_in: SignIn, lab: Tenant, alice: User
) -> None:
    job = halted(lab, alice)
    saved(job, n=1, files=0, state="DROPPED", committed_at=None)
    saved(job, n=2, files=0, state="DROPPED")
    saved(job, n=3)
    client = signed_in(alice)

    page = markup(client.get(f"/t/vision-lab/jobs/{job.pk}/checkpoints"))

    assert page.count("Incomplete") == 1
    assert page.count(">by retention: 3<") == 1
    assert "1 kept of 2 saved" in page
    assert "uploading, " not in markup(client.get(f"/t/vision-lab/jobs/{job.pk}"))
