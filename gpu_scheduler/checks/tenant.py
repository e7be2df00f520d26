"""Whether the tenant may start a job at all: it is active, and below its limit of concurrent jobs."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.checks.base import Check, Finding, Meter, Remedy, Scope
from gpu_scheduler.draft import Supply
from gpu_scheduler.model import Gang, WaitReason


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
