"""Each decision says what it was decided from, and can be decided again."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.db.models.functions import Now

from gpu_scheduler import record
from gpu_scheduler.model import Placement, Start
from jobs.lifecycle import recording
from jobs.lifecycle.plan_effects import NotAdmitted, admit_all
from jobs.models import DecidedPlan, Job, JobEvent
from jobs.selectors import decisions
from jobs.selectors.decisions import Checked, Verdict, check_newest
from jobs.states import EventCode, Phase, State, StopReason
from tenants.models import Quota, Tenant
from tests import factories
from tests.jobs.lifecycle.test_elastic import elastic, measure, reported, start_on
from tests.jobs.lifecycle.world import World, job_of, one_pass, state

pytestmark = pytest.mark.django_db


def verdicts(job: str = "") -> list[Verdict]:
    return [each.verdict for each in check_newest(100, job)]


def plan_of(job: Job, code: EventCode, **narrowed: object) -> DecidedPlan:
    """The plan that an event of the job names."""
    event = job.events.filter(code=code, **narrowed).latest("n")
    stored = DecidedPlan.objects.get(digest=event.numbers["plan"]["snapshot"])
    assert event.numbers["plan"] == {"snapshot": stored.digest, "program": stored.program}
    return stored


def test_a_start_says_what_it_was_decided_from_and_is_decided_again(world: World) -> None:
    job, waits = world.submit(slots=4), world.submit(slots=6)
    assert one_pass() == [job.pk]
    stored = plan_of(job, EventCode.PLACED)
    assert [start[0] for start in stored.decided["starts"]] == [job.pk]
    (checked,) = check_newest(10)
    assert (checked.verdict, checked.same_program, checked.digest) == (Verdict.SAME, True, stored.digest)
    assert verdicts(job.pk) == [Verdict.SAME]
    assert not waits.events.filter(numbers__has_key="plan")


def test_a_start_says_why_it_comes_now(world: World) -> None:
    Quota.objects.filter(tenant=world.tenant).update(limit=4)
    factories.tenant(quotas={"cpu": 4}, cohort="lab")
    Tenant.objects.filter(pk=world.tenant.pk).update(cohort="lab")
    own, beyond = world.submit(slots=4), world.submit(slots=3)
    assert sorted(one_pass()) == sorted([own.pk, beyond.pk])
    placed = {job: job.events.get(code=EventCode.PLACED) for job in (own, beyond)}
    assert [placed[own].numbers[name] for name in ("why", "borrowed")] == ["guaranteed", 0]
    assert [placed[beyond].numbers[name] for name in ("why", "borrowed")] == ["borrowed", 3]
    assert all("limit" not in event.message for event in placed.values()), "guests read the message"
    stored = plan_of(beyond, EventCode.PLACED).decided["why"]
    assert stored[beyond.pk] == {"reason": "borrowed", "borrowed": 3, "generation": job_of(beyond).intent_gen}


def test_a_start_that_was_decided_for_an_earlier_request_is_void(world: World) -> None:
    """Its owner halted and resumed the job after the snapshot: that is another place in the queue."""
    job = world.submit()
    start = Start(job.pk, Placement("cpu", ("node-a",)), generation=job_of(job).intent_gen)
    Job.objects.filter(pk=job.pk).update(intent_gen=start.generation + 1)
    with pytest.raises(NotAdmitted, match="asked for something else"), transaction.atomic():
        admit_all([start], "memory")
    assert state(job) == State.QUEUED
    with transaction.atomic():
        admit_all([replace(start, generation=start.generation + 1)], "memory")
    assert state(job) == State.DEPLOYING


def test_what_cannot_be_written_down_is_decided_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> bytes:
        raise TypeError("no part of a snapshot")

    job = world.submit(slots=4)
    with monkeypatch.context() as patch:
        patch.setattr(record, "written", refuse)
        assert one_pass() == [job.pk]
    assert not job.events.filter(numbers__has_key="plan")
    job, waits = world.submit(slots=2), world.submit(slots=4)
    monkeypatch.setattr(record, "decisions", lambda *_: {"starts": "\x00"})  # which the database refuses
    assert one_pass() == [job.pk]
    assert job.events.filter(numbers__has_key="plan").exists()
    waits.refresh_from_db()
    assert waits.reason_code, "the pass went on"
    assert not DecidedPlan.objects.exists()


def test_a_stop_and_a_resize_say_it_too(world: World) -> None:
    low = world.running(learners=2, slots=4)
    high = world.submit(learners=2, slots=4)
    Job.objects.filter(pk=high.pk).update(priority="urgent", priority_rank=3)
    world.elapse(60)
    world.report(low)
    world.settle()
    stop = plan_of(low, EventCode.MOVED, to_state=State.STOPPING)
    assert stop.decided["stops"] == [[low.pk, StopReason.PREEMPTED, high.pk, 1]]
    assert set(verdicts()) == {Verdict.SAME}
    world.exit(low, halted=True)
    world.done(low)
    world.settle()
    assert state(high) == State.DEPLOYING
    assert plan_of(low, EventCode.MOVED, to_state=State.QUEUED) == stop, "the same order"
    assert job_of(low).order_plan is None, "an order that is carried out leaves nothing"


def test_a_resize_says_what_it_was_decided_from(world: World) -> None:
    run = elastic(world, 1, 8)
    start_on(run, *["node-a"] * 4, *["node-b"] * 4)
    world.settle()
    world.report(run, phase=Phase.PROCESSING)
    world.settle()
    reported(run, 0.5)
    assert measure() == 1
    world.elapse(3600)
    world.report(run, checks_halt=True)
    world.submit(slots=2)
    world.settle()
    resize = plan_of(run, EventCode.MOVED, to_state=State.STOPPING)
    assert [each[0] for each in resize.decided["resizes"]] == [run.pk]
    assert set(verdicts()) == {Verdict.SAME}


def preempted(world: World) -> tuple[Job, Job]:
    """A job that ran for a minute and is asked to leave, and the one that it leaves for."""
    low = world.running(learners=2, slots=4)
    high = world.submit(learners=2, slots=4)
    Job.objects.filter(pk=high.pk).update(priority="urgent", priority_rank=3)
    world.elapse(60)
    world.report(low)
    world.settle()
    return low, high


def leave(world: World, job: Job) -> None:
    world.exit(job, halted=True)
    world.done(job)
    world.settle()


def moved(job: Job, to: State) -> JobEvent:
    return job.events.filter(code=EventCode.MOVED, to_state=to).latest("n")


def test_a_stop_says_what_it_was_expected_to_lose_and_what_it_lost(world: World) -> None:
    low, high = preempted(world)
    loss = plan_of(low, EventCode.MOVED, to_state=State.STOPPING).decided["losses"][low.pk]
    assert loss["slot_type"] == "cpu"
    assert 480 <= loss["unsaved"] < 500, "a minute of eight slots"
    assert loss["restart"] is not None
    assert moved(low, State.STOPPING).numbers["expected_loss"] == loss
    leave(world, low)
    queued = moved(low, State.QUEUED)
    assert queued.numbers["expected_loss"] == loss
    assert queued.numbers["lost"] == pytest.approx(loss["unsaved"], abs=40)
    assert "of work" in queued.message
    assert job_of(low).order_loss is None, "an order that is carried out leaves nothing"
    world.report(high, phase=Phase.PROCESSING)
    world.settle()
    world.exit(high)
    world.done(high)
    world.settle()
    assert state(low) == State.DEPLOYING
    world.elapse(10)
    world.report(low, phase=Phase.PROCESSING)
    world.settle()
    again = moved(low, State.PROCESSING)
    assert 80 <= again.numbers["restart_lost"] < 120, "ten seconds of eight slots"
    assert "The restart took" in again.message


def test_a_stop_before_which_the_program_saved_lost_nothing(world: World) -> None:
    low, _ = preempted(world)
    world.save(low, 5)
    leave(world, low)
    queued = moved(low, State.QUEUED)
    assert queued.numbers["lost"] == 0
    assert queued.numbers["expected_loss"]["unsaved"] >= 480
    assert "It lost no work." in queued.message


def test_a_plan_of_before_losses_were_stored_is_decided_the_same(world: World) -> None:
    preempted(world)
    for row in DecidedPlan.objects.all():
        row.decided.pop("losses")
        row.save()
    assert set(verdicts()) == {Verdict.SAME}


def test_a_plan_that_decides_nothing_is_not_stored(world: World) -> None:
    world.submit(slots=9, learners=1)
    assert one_pass() == []
    assert one_pass() == []
    assert not DecidedPlan.objects.exists()


def test_a_reservation_is_stored_once(world: World) -> None:
    world.running(learners=2, slots=4)
    waits = world.submit(slots=4)
    one_pass()
    world.elapse(600)
    before = DecidedPlan.objects.count()
    one_pass()
    one_pass()
    assert DecidedPlan.objects.count() == before + 1
    assert DecidedPlan.objects.latest("pk").decided["reserved"] == [waits.pk]
    assert verdicts(waits.pk) == [Verdict.SAME]


def test_what_cannot_be_decided_again_says_why(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.submit()
    one_pass()
    row = DecidedPlan.objects.get()
    assert row.snapshot is not None

    def stored(**changes: object) -> Checked:
        DecidedPlan.objects.filter(pk=row.pk).update(
            **{"snapshot": row.snapshot, "policy": row.policy, "decided": row.decided} | changes
        )
        return next(iter(check_newest(1)))

    other = row.decided | {"starts": []}
    assert stored(decided=other).verdict == Verdict.DIFFERENT
    assert stored(decided=other).differs == {"starts": ([], row.decided["starts"])}
    assert stored(snapshot=None).verdict == Verdict.GONE
    assert stored(snapshot=b"no such thing").verdict == Verdict.DAMAGED
    tampered = zlib.compress(zlib.decompress(row.snapshot).replace(b"pack", b"spread"))
    assert stored(snapshot=tampered).verdict == Verdict.DAMAGED
    assert stored(policy="gone_policy").verdict == Verdict.UNREADABLE
    monkeypatch.setattr(decisions, "_source", lambda: "another version")
    assert stored(decided=other).verdict == Verdict.CHANGED
    same = stored()
    assert (same.verdict, same.same_program) == (Verdict.SAME, False)


def test_a_large_snapshot_is_named_and_not_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "LARGEST", 10)
    job = world.submit()
    one_pass()
    assert plan_of(job, EventCode.PLACED).snapshot is None


def test_old_snapshots_go_first_and_plans_with_the_jobs_of_their_time(
    world: World, monkeypatch: pytest.MonkeyPatch, settings: object
) -> None:
    for _ in range(3):
        world.submit()
        one_pass()
    rows: Sequence[DecidedPlan] = list(DecidedPlan.objects.order_by("pk"))
    assert all(row.snapshot for row in rows)
    monkeypatch.setattr(recording, "KEPT_BYTES", len(rows[1].snapshot or b"") + len(rows[2].snapshot or b""))
    assert recording.forget({}) == {"removed": 0, "snapshots": 1}
    assert [row.snapshot is not None for row in DecidedPlan.objects.order_by("pk")] == [False, True, True]
    assert recording.forget({}) == {"removed": 0, "snapshots": 0}
    DecidedPlan.objects.filter(pk=rows[1].pk).update(at=Now() - timedelta(days=10_000))
    assert recording.forget({})["removed"] == 1


def test_the_command_says_what_the_orders_were_expected_to_lose(world: World) -> None:
    low, _ = preempted(world)
    out = StringIO()
    call_command("decisions", "--job", low.pk, stdout=out)
    assert re.search(rf"{low.pk}: at stake (8|8\.\d|9) CPU minutes of work, and ", out.getvalue()), (
        out.getvalue()
    )
    row = DecidedPlan.objects.get(decided__losses__has_key=low.pk)
    row.decided["losses"][low.pk] = {"slot_type": "a100", "unsaved": 7200.0, "restart": None}
    row.save()
    out = StringIO()
    with pytest.raises(CommandError, match="1 plan"):  # it is not what its snapshot gives
        call_command("decisions", "--job", low.pk, "--newest", "1", stdout=out)
    assert "at stake 2 a100 GPU hours of work, and an unknown restart" in out.getvalue()


def test_the_command_says_what_came_of_it(world: World) -> None:
    def shown(*options: str) -> str:
        out = StringIO()
        call_command("decisions", *options, stdout=out)
        return out.getvalue()

    assert "No plan that decided something is stored" in shown()
    job = world.submit()
    one_pass()
    assert "1 plan: 1 the same" in shown("--job", job.pk)
    assert "fair_share: 1 starts (1 guaranteed)\n" in shown("--job", job.pk)
    assert '"verdict": "same"' in shown("--json")
    digest = DecidedPlan.objects.get().digest
    assert "1 plan: 1 the same" in shown("--snapshot", digest[:12].upper())
    assert "No plan" in shown("--snapshot", ("1" if digest[0] == "0" else "0") + digest[1:12])
    with pytest.raises(CommandError, match="--snapshot: a digest"):
        shown("--snapshot", "100%")
    DecidedPlan.objects.update(decided={"starts": [], "stops": [], "resizes": [], "reserved": []})
    with pytest.raises(CommandError, match="1 plan"):
        shown()
    with pytest.raises(CommandError, match="--newest"):
        shown("--newest", "0")
