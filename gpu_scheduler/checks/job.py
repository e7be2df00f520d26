"""How large one job of the tenant may be, and how long it may run."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.checks.base import Check, Finding, Meter, Remedy, Scope
from gpu_scheduler.checks.words import duration
from gpu_scheduler.draft import Supply
from gpu_scheduler.model import Gang, WaitReason, unit


class MaxGang(Check):
    """The job is no larger than the tenant's largest job."""

    code = WaitReason.EXCEEDS_MAX_GANG
    key = "max_gang"
    title = "Job size limit"
    claim = "The job is no larger than the tenant's largest job"
    label = "larger than allowed"
    remedy = Remedy.FIX
    scope = Scope.TENANT
    queues = False
    private = frozenset({"gang_limit"})
    redacted = "Larger than a job of this tenant can be. Clone the job with fewer devices."

    def applies(self, supply: Supply) -> bool:
        return supply.account.gang_limit is not None

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        limit = supply.account.gang_limit
        return Finding(self, gang, supply, None) if limit is not None and gang.asked > limit else None

    def numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        return {"gang_limit": supply.account.gang_limit}

    def sentence(self, finding: Finding) -> str:
        gang, kind, limit = finding.gang, finding.supply.slot_type, finding.supply.account.gang_limit or 0
        return (
            f"Larger than a job of this tenant can be: this job needs {gang.asked} {unit(kind, gang.asked)} over all"
            f" learners, at most {limit} are allowed. Request fewer, or ask a platform admin to raise the limit."
        )

    def nearness(self, finding: Finding) -> int:
        return finding.supply.account.gang_limit or 0

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        return Meter(0, numbers["gang_limit"], numbers["asked"])

    def meter_text(self, *, used: int, limit: int, asked: int) -> str:
        return f"needs {asked}, a job can have {limit}"


class MaxTime(Check):
    """The job's time limit is no longer than the tenant's longest; of one that ran before, what is left of it."""

    code = WaitReason.EXCEEDS_MAX_TIME
    key = "max_time"
    title = "Time limit"
    claim = "The job's time limit is no longer than the tenant's longest"
    label = "time limit too long"
    remedy = Remedy.FIX
    scope = Scope.TENANT
    queues = False
    private = frozenset({"max_time_s"})
    redacted = "Its time limit is longer than this tenant allows. Clone the job with a shorter one."

    def applies(self, supply: Supply) -> bool:
        return supply.jobs.max_time_s is not None

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        longest, runs = supply.jobs.max_time_s, gang.runs_at_most_s
        fails = longest is not None and (runs is None or runs > longest)
        return Finding(self, gang, supply, None) if fails else None

    def shortage_numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        """In seconds; runs_at_most_s is None without a time limit."""
        return {"max_time_s": supply.jobs.max_time_s, "runs_at_most_s": gang.runs_at_most_s}

    def sentence(self, finding: Finding) -> str:
        runs, longest = finding.gang.runs_at_most_s, duration(finding.supply.jobs.max_time_s or 0)
        own = (
            "this job has no time limit"
            if runs is None
            else f"this job's time limit leaves it {duration(runs)}"
        )
        return (
            f"Jobs of this tenant can run for {longest} at most, and {own}. Resubmit it with time_limit: {longest} or"
            " less, or ask a platform admin to raise the limit."
        )
