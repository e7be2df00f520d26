"""Whether the tenant may start a job at all: it is active, has GPU-hours left for a GPU job, and is below its limit of
concurrent jobs."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.checks.base import Check, Finding, Meter, Remedy, Scope
from gpu_scheduler.checks.words import hours, hours_used
from gpu_scheduler.draft import Supply
from gpu_scheduler.ledger import LEAST_RUN_S
from gpu_scheduler.model import CPU_TYPE, Budget, Gang, WaitReason, timestamp


class ActiveTenant(Check):
    """The tenant is not suspended."""

    code = WaitReason.TENANT_SUSPENDED
    key = "tenant"
    title = "Tenant"
    claim = "The tenant is active"
    label = "tenant suspended"
    remedy = Remedy.ASK
    scope = Scope.TENANT
    queues = False

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        return Finding(self, gang, supply, None) if supply.jobs.suspended else None

    def sentence(self, finding: Finding) -> str:
        return "The tenant is suspended: no job starts until a platform admin reopens it."


class GpuBudget(Check):
    """The tenant has GPU-hours left in its budget of the month. Asked before its quotas are: nothing is kept, borrowed
    or stopped for a job that the budget holds."""

    code = WaitReason.BUDGET_EXHAUSTED
    key = "budget"
    title = "GPU-hour budget"
    claim = "The tenant has GPU-hours left in its budget of this month"
    label = "GPU-hour budget used up"
    remedy = Remedy.ASK
    scope = Scope.TENANT
    queues = False
    private = frozenset({"budget_gpu_hours", "budget_used_gpu_hours", "month_ends"})
    redacted = "Waiting: its tenant can start no GPU job now."

    def applies(self, supply: Supply) -> bool:
        return supply.jobs.budget is not None and supply.slot_type != CPU_TYPE

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        if supply.slot_type == CPU_TYPE or supply.jobs.budget_lasts(gang.asked):
            return None
        return Finding(self, gang, supply, self.scope)

    def numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        budget = supply.jobs.budget
        if budget is None:
            return {}
        return {
            "budget_gpu_hours": budget.gpu_hours,
            "budget_used_gpu_hours": round(budget.used_gpu_s / 3600, 3),
            "month_ends": timestamp(budget.month_ends) if _next_month_helps(gang, budget) else None,
        }

    def sentence(self, finding: Finding) -> str:
        budget = finding.supply.jobs.budget
        assert budget is not None
        if not _next_month_helps(finding.gang, budget):
            return (
                f"The tenant's GPU-hour budget of {hours(budget.gpu_hours)} GPU-hours a month is too small for a minute"
                " of this job. It starts only after a platform admin raises the budget."
            )
        left = (
            "used up"
            if budget.left_gpu_s <= 0
            else "nearly used up, with less left than a minute of this job and of those that run"
        )
        return (
            f"The tenant's GPU-hour budget is {left}: {hours_used(budget.used_gpu_s / 3600, budget.gpu_hours)} of"
            f" {hours(budget.gpu_hours)} GPU-hours of this month are used. It starts after the next month begins,"
            f" {budget.month_ends:%Y-%m-%d %H:%M} UTC, or when a platform admin raises the budget."
        )

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        """In whole GPU-hours."""
        return Meter(round(numbers["budget_used_gpu_hours"]), round(numbers["budget_gpu_hours"]), 0)

    def meter_text(self, *, used: int, limit: int, asked: int) -> str:
        return f"{used:,} of {limit:,} GPU-hours of this month used"


def _next_month_helps(gang: Gang, budget: Budget) -> bool:
    """Whether a whole budget lasts for the gang."""
    return budget.gpu_hours * 3600 >= gang.asked * LEAST_RUN_S


class JobsLimit(Check):
    """The tenant runs fewer jobs than it can run at once."""

    code = WaitReason.QUOTA_JOBS
    key = "jobs"
    title = "Concurrent jobs"
    claim = "The tenant is below its limit of concurrent jobs"
    label = "too many jobs at once"
    scope = Scope.TENANT
    private = frozenset({"jobs_limit", "jobs_used"})
    redacted = "Waiting for another job to end: the tenant has reached its limit of concurrent jobs."

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        jobs = supply.jobs
        return (
            Finding(self, gang, supply, self.scope)
            if jobs.limit is not None and jobs.used + 1 > jobs.limit
            else None
        )

    def sentence(self, finding: Finding) -> str:
        jobs = finding.supply.jobs
        return (
            f"Waiting for another job to end: the tenant runs {jobs.used} of at most {jobs.limit} jobs"
            f" at once."
        )

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        return Meter(numbers["jobs_used"], numbers["jobs_limit"], 1)
