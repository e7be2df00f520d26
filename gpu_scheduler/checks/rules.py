"""The admission rules, in the order in which a job is tested: what the cluster has at all, what the tenant is allowed
to use, and what is free on the nodes now and not reserved for jobs ahead in the queue."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
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
    private = frozenset({"holder"})
    redacted = "Waiting its turn: what it needs is reserved for a job ahead in the queue."

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        pool = supply.pool
        if self._quota_reserved(gang, supply) or self._jobs_reserved(gang, supply):
            return Finding(self, gang, supply, Scope.TENANT)
        assert pool is not None
        if pool.reserved_for is not None and pool.free.capacity(gang.slots) >= gang.learners.min:
            return None if pool.fits(gang, supply.now) else Finding(self, gang, supply, Scope.CLUSTER)
        return None

    def numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        """holder: the job that holds the reservation; None if it is another tenant's. until: when its nodes are free
        at the latest; None if that is not known."""
        if self._quota_reserved(gang, supply):
            return {"holder": supply.account.reserved_for, "until": None}
        if self._jobs_reserved(gang, supply):
            return {"holder": supply.jobs.reserved_for, "until": None}
        pool = supply.pool
        if pool is None or pool.reserved_for is None:
            return {"holder": None, "until": None}
        own, until = pool.reserved_for.tenant == gang.tenant, pool.reserved_until
        return {"holder": pool.reserved_for.job if own else None, "until": until and until.isoformat()}

    def sentence(self, finding: Finding) -> str:
        gang, supply = finding.gang, finding.supply
        holder = finding.numbers["holder"]
        needs = f"this job needs {gang.asked} {unit(supply.slot_type, gang.asked)}"
        if finding.scope is Scope.TENANT:
            taken = self._of_quota if self._quota_reserved(gang, supply) else self._of_jobs
            return (
                f"Waiting its turn: {taken(supply)} for job {holder} ahead in the queue; {needs}."
                " The reservation holds until that job starts."
            )
        free, reserved = finding.numbers["free"], finding.numbers["reserved"]
        whose = f"job {holder}" if holder else "a job of another tenant"
        until = supply.pool.reserved_until if supply.pool else None
        ends = f"{_moment(until, supply.now)} at the latest" if until else "that job starts"
        left = free - reserved
        rest = (
            f"so {left} {_are(left)} left"
            if left < gang.asked
            else f"and its learners do not fit on the {left} left"
        )
        return (
            f"Waiting its turn: {reserved} of {free} free {unit(supply.slot_type, free)} {_are(reserved)} reserved"
            f" for {whose} ahead in the queue, {rest}; {needs}. The reservation holds until {ends}."
        )

    @staticmethod
    def _quota_reserved(gang: Gang, supply: Supply) -> bool:
        """Whether the tenant's quota is reserved for another of its jobs."""
        account = supply.account
        if not account.reserved or account.reserved_for == gang.job:
            return False
        return account.used + account.reserved + gang.asked > account.limit

    @staticmethod
    def _jobs_reserved(gang: Gang, supply: Supply) -> bool:
        """The same of its limit of concurrent jobs."""
        jobs, own = supply.jobs, supply.account.reserved_for == gang.job
        if not jobs.reserved or jobs.limit is None:
            return False
        return jobs.used + jobs.reserved + (not own) > jobs.limit

    @staticmethod
    def _of_quota(supply: Supply) -> str:
        account = supply.account
        return (
            f"{account.used} of the tenant's {account.limit} {unit(supply.slot_type, account.limit)}"
            f" {_are(account.used)} in use and {account.reserved} {_are(account.reserved)} reserved"
        )

    @staticmethod
    def _of_jobs(supply: Supply) -> str:
        jobs = supply.jobs
        return (
            f"the tenant runs {jobs.used} of at most {jobs.limit} jobs at once and {jobs.reserved}"
            f" {_are(jobs.reserved)} reserved"
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


def _moment(at: datetime, now: datetime) -> str:
    """14:32 UTC; with the day if that is not today's."""
    return f"{at.astimezone(UTC):{'%H:%M' if at.date() == now.date() else '%d %b %H:%M'}} UTC"


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
