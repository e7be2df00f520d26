"""Checks of what the cluster has at all and of what the tenant is allowed to use."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.checks.base import Actor, Candidate, Check, Finding, Holder, Meter, shape, unit
from gpu_scheduler.model import WaitReason


class MatchingPool(Check):
    """Nodes of the type exist, up or down, and would hold the gang if nothing else ran."""

    code = WaitReason.NO_MATCHING_POOL
    key = "pool"
    title = "Device type"
    claim = "The cluster has nodes of this type and size"
    label = "no such devices"
    actor = Actor.FIX
    holder = Holder.CLUSTER
    queues = False

    def test(self, on: Candidate) -> Finding | None:
        if on.pool is not None and on.pool.could_hold(on.gang):
            return None
        return Finding(self, on, None)

    def sentence(self, finding: Finding) -> str:
        gang, slot_type, pool = finding.on.gang, finding.on.slot_type, finding.on.pool
        if pool is None:
            what = f"{slot_type} nodes" if slot_type else "GPU nodes"
            return f"This cluster has no {what}; choose another type."
        largest = pool.largest_node
        if gang.slots > largest:
            return (
                f"No node is large enough: a learner needs {gang.slots} {unit(slot_type, gang.slots)} on one"
                f" node, the largest node has {largest}. Request at most {largest} per learner."
            )
        return (
            f"The cluster is too small: {shape(gang)} {unit(slot_type, finding.on.asked)} do not fit even if"
            f" nothing else runs. Request fewer learners."
        )


class MaxQuota(Check):
    """The job alone is no larger than the tenant's quota."""

    code = WaitReason.EXCEEDS_MAX_QUOTA
    key = "max_quota"
    title = "Job size vs quota"
    claim = "The job is no larger than the tenant's quota"
    label = "larger than the quota"
    actor = Actor.FIX
    holder = Holder.TENANT
    queues = False
    private = frozenset({"limit", "used"})
    redacted = "Larger than the tenant's quota. Ask for more quota, or clone the job with fewer devices."

    def test(self, on: Candidate) -> Finding | None:
        return Finding(self, on, None) if on.asked > on.account.limit else None

    def sentence(self, finding: Finding) -> str:
        on, limit = finding.on, finding.on.account.limit
        if not limit:
            kind = on.gang.slot_type
            what = f"for {unit(kind, 0)}" if kind else "for any GPU type"
            return f"The tenant has no quota {what}, this job needs {on.asked}; ask a platform admin."
        return (
            f"Larger than the tenant's quota: this job needs {on.asked} {unit(on.slot_type, on.asked)},"
            f" the quota is {limit}. Request fewer, or ask a platform admin for more quota."
        )

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        return Meter(0, numbers["limit"], numbers["asked"])

    def meter_text(self, *, used: int, limit: int, asked: int) -> str:
        return f"needs {asked}, the quota is {limit}"


class ActiveTenant(Check):
    """The tenant is not suspended."""

    code = WaitReason.TENANT_SUSPENDED
    key = "tenant"
    title = "Tenant"
    claim = "The tenant is active"
    label = "tenant suspended"
    actor = Actor.ASK
    holder = Holder.TENANT
    queues = False

    def test(self, on: Candidate) -> Finding | None:
        return Finding(self, on, None) if on.jobs.suspended else None

    def sentence(self, finding: Finding) -> str:
        return "The tenant is suspended: no job starts until a platform admin reopens it."


class QuotaRoom(Check):
    """What the tenant's running jobs hold leaves enough of its quota."""

    code = WaitReason.QUOTA_GPUS
    key = "quota"
    title = "Tenant quota"
    claim = "The tenant's quota has room"
    label = "over quota"
    holder = Holder.TENANT
    private = frozenset({"limit", "used"})
    redacted = "Waiting for quota: too little of it is free."

    def test(self, on: Candidate) -> Finding | None:
        account = on.account
        return Finding(self, on, self.holder) if account.used + on.asked > account.limit else None

    def sentence(self, finding: Finding) -> str:
        on, account = finding.on, finding.on.account
        return (
            f"Waiting for quota: {account.used} of {account.limit} {unit(on.slot_type, account.limit)} in use,"
            f" this job needs {on.asked}."
        )

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        return Meter(numbers["used"], numbers["limit"], numbers["asked"])


class JobsLimit(Check):
    """The tenant runs fewer jobs than it can run at once."""

    code = WaitReason.QUOTA_JOBS
    key = "jobs"
    title = "Concurrent jobs"
    claim = "The tenant is below its limit of concurrent jobs"
    label = "too many jobs at once"
    holder = Holder.TENANT
    private = frozenset({"jobs_limit", "jobs_used"})
    redacted = "Waiting for another job to end: the tenant has reached its limit of concurrent jobs."

    def test(self, on: Candidate) -> Finding | None:
        jobs = on.jobs
        return (
            Finding(self, on, self.holder) if jobs.limit is not None and jobs.used + 1 > jobs.limit else None
        )

    def sentence(self, finding: Finding) -> str:
        jobs = finding.on.jobs
        return (
            f"Waiting for another job to end: the tenant runs {jobs.used} of at most {jobs.limit} jobs"
            f" at once."
        )

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        return Meter(numbers["jobs_used"], numbers["jobs_limit"], 1)
