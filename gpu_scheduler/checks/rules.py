"""The admission rules, in the order in which a job is tested: what the cluster has at all, what the tenant is allowed
to use, and what is free on the nodes now and not reserved for jobs ahead in the queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_scheduler.checks.base import Check, Finding, Meter, Remedy, Scope, shape
from gpu_scheduler.draft import Supply
from gpu_scheduler.model import Gang, WaitReason, unit


class MatchingPool(Check):
    """Nodes of the type exist, up or down, and would hold the gang if nothing else ran."""

    code = WaitReason.NO_MATCHING_POOL
    key = "pool"
    title = "Device type"
    claim = "The cluster has nodes of this type and size"
    label = "no such devices"
    remedy = Remedy.FIX
    scope = Scope.CLUSTER
    queues = False

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        if supply.pool is not None and supply.pool.could_hold(gang):
            return None
        return Finding(self, gang, supply, None)

    def nearness(self, finding: Finding) -> int:
        return finding.supply.pool.largest_node if finding.supply.pool else 0

    def sentence(self, finding: Finding) -> str:
        gang, kind, pool = finding.gang, finding.gang.slot_type or "", finding.supply.pool
        if pool is None:
            if not kind:
                return "This cluster has no GPU nodes; request no GPUs (gpus: 0)."
            return f"This cluster has no {kind} nodes; choose another type."
        largest = pool.largest_node
        if gang.slots > largest:
            return (
                f"No node is large enough: a learner needs {gang.slots} {unit(kind, gang.slots)} on one"
                f" node, the largest node has {largest}. Request at most {largest} per learner."
            )
        of_one_type = "" if kind else " of one type"
        return (
            f"The cluster is too small: {shape(gang)} {unit(kind, gang.asked)}{of_one_type} do not fit even if"
            f" nothing else runs. Request fewer learners."
        )


class MaxQuota(Check):
    """The job alone is no larger than the tenant's quota."""

    code = WaitReason.EXCEEDS_MAX_QUOTA
    key = "max_quota"
    title = "Job size vs quota"
    claim = "The job is no larger than the tenant's quota"
    label = "larger than the quota"
    remedy = Remedy.FIX
    scope = Scope.TENANT
    queues = False
    private = frozenset({"limit", "used"})
    redacted = "Larger than the tenant's quota. Ask for more quota, or clone the job with fewer devices."

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        return Finding(self, gang, supply, None) if gang.asked > supply.account.limit else None

    def sentence(self, finding: Finding) -> str:
        gang, limit = finding.gang, finding.supply.account.limit
        if not limit:
            kind = gang.slot_type
            what = f"for {unit(kind, 0)}" if kind else "for any GPU type on which this job fits"
            return f"The tenant has no quota {what}, this job needs {gang.asked}; ask a platform admin."
        if gang.slot_type is None:
            return (
                f"Larger than the tenant's quota of each GPU type on which this job fits: it needs {gang.asked} GPUs of"
                f" one type, the largest of these quotas is {limit} {unit(finding.supply.slot_type, limit)}. Request"
                " fewer, or ask a platform admin for more quota."
            )
        return (
            f"Larger than the tenant's quota: this job needs {gang.asked} {unit(finding.supply.slot_type, gang.asked)},"
            f" the quota is {limit}. Request fewer, or ask a platform admin for more quota."
        )

    def nearness(self, finding: Finding) -> int:
        return finding.supply.account.limit

    def remedy_for(self, numbers: Mapping[str, Any]) -> Remedy:
        return Remedy.ASK if numbers.get("limit") == 0 else self.remedy

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
    remedy = Remedy.ASK
    scope = Scope.TENANT
    queues = False

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        return Finding(self, gang, supply, None) if supply.jobs.suspended else None

    def sentence(self, finding: Finding) -> str:
        return "The tenant is suspended: no job starts until a platform admin reopens it."


class QuotaRoom(Check):
    """What the tenant's running jobs hold leaves enough of its quota."""

    code = WaitReason.QUOTA_GPUS
    key = "quota"
    title = "Tenant quota"
    claim = "The tenant's quota has room"
    label = "over quota"
    scope = Scope.TENANT
    private = frozenset({"limit", "used"})
    redacted = "Waiting for quota: too little of it is free."

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        account = supply.account
        return Finding(self, gang, supply, self.scope) if account.used + gang.asked > account.limit else None

    def sentence(self, finding: Finding) -> str:
        supply, account = finding.supply, finding.supply.account
        return (
            f"Waiting for quota: {account.used} of {account.limit} {unit(supply.slot_type, account.limit)} in use,"
            f" this job needs {finding.gang.asked}."
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


class Unreserved(Check):
    """Nothing that the job needs is reserved for one ahead of it: by its own tenant's quota, or on the nodes."""

    code = WaitReason.FAIR_SHARE
    key = "fair_share"
    title = "Fair share"
    claim = "Nothing it needs is reserved for a job ahead in the queue"
    label = "waiting its turn"
    scope = Scope.CLUSTER

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        account, jobs, pool = supply.account, supply.jobs, supply.pool
        own = account.reserved_for == gang.job
        if account.reserved and not own and account.used + account.reserved + gang.asked > account.limit:
            return Finding(self, gang, supply, Scope.TENANT)
        if jobs.reserved and jobs.limit is not None and jobs.used + jobs.reserved + (not own) > jobs.limit:
            return Finding(self, gang, supply, Scope.TENANT)
        assert pool is not None
        if pool.has_reservation and pool.free.capacity(gang.slots) >= gang.learners.min:
            return None if pool.fits(gang, supply.now) else Finding(self, gang, supply, Scope.CLUSTER)
        return None

    def sentence(self, finding: Finding) -> str:
        asked, slot_type = finding.gang.asked, finding.supply.slot_type
        needs = f"this job needs {asked} {unit(slot_type, asked)}"
        if finding.scope is Scope.TENANT:
            return (
                "Waiting its turn: the tenant's quota or limit of concurrent jobs is reserved for a job ahead in its"
                f" queue; {needs}."
            )
        free, reserved = finding.numbers["free"], finding.numbers["reserved"]
        return (
            f"Waiting its turn: {reserved} of {free} free {unit(slot_type, free)} {_are(reserved)} reserved"
            f" for a job ahead in the queue; {needs}."
        )


class Capacity(Check):
    """As many slots are free as the gang needs."""

    code = WaitReason.INSUFFICIENT_CAPACITY
    key = "capacity"
    title = "Free capacity"
    claim = "Enough devices are free"
    label = "waiting for capacity"
    scope = Scope.CLUSTER

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        assert supply.pool is not None
        return Finding(self, gang, supply, self.scope) if supply.pool.free.total < gang.asked else None

    def sentence(self, finding: Finding) -> str:
        numbers = finding.numbers
        text = (
            f"Waiting for capacity: {numbers['free']} of {numbers['total']}"
            f" {unit(finding.supply.slot_type, numbers['total'])} free, this job needs {finding.gang.asked}"
        )
        down = numbers["nodes_down"]
        if down:
            text += f"; {down} {'node is' if down == 1 else 'nodes are'} down"
        return text + "."

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        if "total" not in numbers:
            return None
        return Meter(numbers["total"] - numbers["free"], numbers["total"], numbers["asked"])


class WholeGang(Check):
    """The free slots lie on nodes so that each learner fits whole."""

    code = WaitReason.GANG_FRAGMENTED
    key = "gang"
    title = "Gang placement"
    claim = "All learners fit on nodes at the same time"
    label = "waiting for whole nodes"
    scope = Scope.CLUSTER

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        assert supply.pool is not None
        if supply.pool.free.capacity(gang.slots) >= gang.learners.min:
            return None
        return Finding(self, gang, supply, self.scope)

    def sentence(self, finding: Finding) -> str:
        gang, numbers = finding.gang, finding.numbers
        free = numbers["free"]
        free_now = f"{free} {unit(finding.supply.slot_type, free)} {_are(free)} free"
        if gang.learners.min == 1:
            return (
                f"Waiting for one node with {gang.slots} free: {free_now},"
                f" at most {numbers['largest_block']} on one node."
            )
        return (
            f"Waiting for {shape(gang)} at the same time: {free_now}, but only"
            f" {numbers['learners_fitting']} of {gang.learners.min} learners fit on nodes."
        )

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        if "total" not in numbers:
            return None
        return Meter(0, numbers["learners_fitting"], numbers["learners"])

    def meter_text(self, *, used: int, limit: int, asked: int) -> str:
        return f"{limit} of {asked} learner{'' if asked == 1 else 's'} would fit now"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


CHECKS: tuple[Check, ...] = (
    MatchingPool(),
    MaxQuota(),
    ActiveTenant(),
    QuotaRoom(),
    JobsLimit(),
    Unreserved(),
    Capacity(),
    WholeGang(),
)
