"""Why a job starts now: its start says so, from what held when it was decided."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler import record
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Snapshot, StartReason
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.policies.fifo import FifoBackfill
from tests.gpu_scheduler.test_cohorts import shared, sharing_worlds
from tests.gpu_scheduler.worlds import NOON, gang, nodes, running, snapshot, usage_after, worlds

EVERYDAY = settings(max_examples=150, deadline=None)


def reasons(made: Snapshot) -> dict[str, tuple[str, int]]:
    return {start.job: (start.reason.value, start.borrowed) for start in plan(made).starts}


def test_within_the_limit_and_beyond_it() -> None:
    """The third job is partly beyond: it is the one that others can take back."""
    waiting = [gang(f"j{n}", slots=3) for n in (1, 2, 3, 4)]
    made = snapshot(nodes(a1=16), waiting, quotas=shared({"red": 7, "green": 9}))
    own = dict.fromkeys(("j1", "j2"), ("guaranteed", 0))
    assert reasons(made) == own | {"j3": ("borrowed", 2), "j4": ("borrowed", 3)}


def test_what_was_freed_for_it_is_a_reason_until_the_promise_ends() -> None:
    for after_s, reason in ((1, "nominated"), (0, "guaranteed")):
        promised = {"j1": NOON + timedelta(seconds=after_s)}
        made = snapshot(nodes(a1=4), [gang("j1")], promised=promised)
        assert reasons(made) == {"j1": (reason, 0)}
    assert reasons(snapshot(nodes(a1=4), [gang("j1")], promised={"j1": None, "j9": None})) == {
        "j1": ("nominated", 0)
    }


def test_a_job_that_passes_one_for_which_slots_are_kept_says_so() -> None:
    """j1 lacks one of its 16 slots; j2 ends before that one is free. Before its timeout nothing is kept for j1."""
    busy = running("r", "a1", tenant="green", ends_by=NOON + timedelta(seconds=600))
    waiting = [gang("j1", 2, 8), gang("j2", tenant="blue", runs_at_most_s=60)]
    made = snapshot(nodes(a1=8, a2=8), waiting, [busy], policy_state={"j1": NOON - timedelta(seconds=400)})
    assert reasons(made) == {"j2": ("backfilled", 0)}
    assert reasons(replace(made, policy_state={})) == {"j2": ("guaranteed", 0)}
    assert reasons(replace(made, policy=FifoBackfill(), policy_state={})) == {"j2": ("backfilled", 0)}


def test_a_job_within_its_limit_passes_none_that_would_borrow() -> None:
    """j1 would borrow what green's waiting job claims: nothing is kept for it before the jobs that limits cover."""
    waiting = [gang("j1", slots=8), gang("j2", slots=2), gang("j3", slots=8, tenant="green")]
    busy = running("r", "a2", slots=8, tenant="blue")
    quotas = shared({"red": 4, "green": 12, "blue": 8}, {"blue": 8})
    made = snapshot(
        nodes(a1=6, a2=8), waiting, [busy], quotas=quotas, policy_state={"j1": NOON - timedelta(hours=1)}
    )
    decided = plan(made)
    assert {wait.job for wait in decided.waits} == {"j1", "j3"}
    assert reasons(made)["j2"] == ("guaranteed", 0)


def test_it_carries_the_generation_that_it_was_decided_for() -> None:
    made = snapshot(nodes(a1=4), [gang("j1", generation=7)])
    assert plan(made).starts[0].generation == 7
    assert record.decisions(plan(made), made)["why"] == {
        "j1": {"reason": "guaranteed", "borrowed": 0, "generation": 7}
    }


@EVERYDAY
@given(st.one_of(worlds(), sharing_worlds()))
def test_what_starts_say_they_borrow_is_what_their_tenants_use_beyond_their_limits(made: Snapshot) -> None:
    decided = plan(made)
    used, _ = usage_after(made, decided)
    gangs = {each.job: each for each in made.waiting}
    said: Counter[tuple[str, str]] = Counter()
    for start in decided.starts:
        said[gangs[start.job].tenant, start.placement.slot_type] += start.borrowed
        assert (start.reason is StartReason.BORROWED) <= (start.borrowed > 0)
        assert (start.reason is StartReason.GUARANTEED) <= (start.borrowed == 0)
        assert (start.reason is StartReason.NOMINATED) == (start.job in made.promised)
        if start.reason is StartReason.BACKFILLED:
            assert decided.reserved or decided.waits, "a job is passed"
    for quota in made.quotas:
        before, after = quota.used, used[quota.tenant, quota.slot_type]
        beyond = max(0, after - quota.limit) - max(0, before - quota.limit) if quota.cohort else 0
        assert said[quota.tenant, quota.slot_type] == beyond


def test_old_records_are_read() -> None:
    """Of before a gang could be opportunistic, and of before it had a generation: its list is shorter."""
    seen = snapshot(nodes(a1=4), [gang("j1", generation=7)])
    text = record.written(seen)
    for shorter, found in ((b',"",7]', gang("j1", generation=7)), (b',""]', gang("j1"))):
        older = text.replace(b',"",7,false]', shorter)
        assert older != text
        assert record.read(older, FairShare()) == replace(seen, waiting=(found,))
