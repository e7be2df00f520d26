"""The admission rules, in the order in which a job is tested: what the cluster has at all, what the tenant is allowed
to use, and what is free on the nodes now and not reserved for jobs ahead in the queue."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from gpu_scheduler.checks.base import Check, Finding, Meter, Remedy, Scope, amount, shape
from gpu_scheduler.draft import Supply
from gpu_scheduler.model import Gang, WaitReason, unit
from gpu_scheduler.placement import CPUS, MEMORY, Shortage


class MatchingPool(Check):
    """Nodes of the type exist, up or down, and would hold the gang's slots if nothing else ran."""

    code = WaitReason.NO_MATCHING_POOL
    key = "pool"
    title = "Device type"
    claim = "The cluster has enough devices of this type"
    label = "no such devices"
    remedy = Remedy.FIX
    scope = Scope.CLUSTER
    queues = False

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        if supply.pool is not None and supply.pool.could_hold_slots(gang):
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


class NodeSize(Check):
    """A learner's CPUs and memory would fit beside its slots if nothing else ran, and so would the whole gang."""

    code = WaitReason.NODE_TOO_SMALL
    key = "node_size"
    title = "Node size"
    claim = "Nodes of this type have the CPUs and the memory"
    label = "larger than any node"
    remedy = Remedy.FIX
    scope = Scope.CLUSTER
    queues = False

    def applies(self, supply: Supply) -> bool:
        return supply.pool is not None and (supply.pool.counts_cpus or supply.pool.counts_memory)

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        assert supply.pool is not None
        return None if supply.pool.could_hold(gang) else Finding(self, gang, supply, None)

    def shortage_numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        found = _short_of(gang, supply)
        return _numbers_of(*found) if found else {}

    def sentence(self, finding: Finding) -> str:
        gang, slot_type = finding.gang, finding.supply.slot_type
        found = _short_of(gang, finding.supply)
        assert found is not None
        resource, short = found
        needs = f"{amount(resource, short.need)} beside its {_devices(gang, slot_type)}"
        if short.have < short.need:
            return (
                f"No node is large enough: a learner needs {needs} on one node, the most that a learner can have is"
                f" {amount(resource, short.have)}. Request at most that per learner."
            )
        return (
            f"The cluster is too small: only {short.fitting} of {gang.learners.min} learners, each with {needs}, fit"
            f" even if nothing else runs. Request fewer learners, or less for each."
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
    private = frozenset({"limit", "used", "most", "borrowed"})
    redacted = "Larger than the tenant's quota. Ask for more quota, or clone the job with fewer devices."

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        return Finding(self, gang, supply, None) if gang.asked > supply.account.most else None

    def sentence(self, finding: Finding) -> str:
        gang, limit, most = finding.gang, finding.supply.account.limit, finding.supply.account.most
        if not most:
            kind = gang.slot_type
            what = f"for {unit(kind, 0)}" if kind else "for any GPU type on which this job fits"
            return f"The tenant has no quota {what}, this job needs {gang.asked}; ask a platform admin."
        if gang.slot_type is None:
            return (
                f"Larger than the tenant's quota of each GPU type on which this job fits: it needs {gang.asked} GPUs of"
                f" one type, the largest of these quotas is {most} {unit(finding.supply.slot_type, most)}. Request"
                " fewer, or ask a platform admin for more quota."
            )
        borrowed = f", and it can borrow at most {most - limit}" if most > limit else ""
        return (
            f"Larger than the tenant's quota: this job needs {gang.asked} {unit(finding.supply.slot_type, gang.asked)},"
            f" the quota is {limit}{borrowed}. Request fewer, or ask a platform admin for more quota."
        )

    def nearness(self, finding: Finding) -> int:
        return finding.supply.account.most

    def remedy_for(self, numbers: Mapping[str, Any]) -> Remedy:
        return Remedy.ASK if numbers.get("most", numbers.get("limit")) == 0 else self.remedy

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        return Meter(0, numbers.get("most", numbers["limit"]), numbers["asked"])

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
    """What the tenant's running jobs hold leaves enough of its quota, and of what it can borrow."""

    code = WaitReason.QUOTA_GPUS
    key = "quota"
    title = "Tenant quota"
    claim = "The tenant's quota has room"
    label = "over quota"
    scope = Scope.TENANT
    private = frozenset({"limit", "used", "most", "borrowed"})
    redacted = "Waiting for quota: too little of it is free."

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        account = supply.account
        return Finding(self, gang, supply, self.scope) if account.used + gang.asked > account.most else None

    def sentence(self, finding: Finding) -> str:
        supply, account = finding.supply, finding.supply.account
        kind, needs = unit(supply.slot_type, account.limit), f"this job needs {finding.gang.asked}"
        if account.most == account.limit:
            return f"Waiting for quota: {account.used} of {account.limit} {kind} in use, {needs}."
        return (
            f"Waiting for quota: {account.used} {unit(supply.slot_type, account.used)} in use of a quota of"
            f" {account.limit} and at most {account.most - account.limit} borrowed, {needs}."
        )

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        return Meter(numbers["used"], numbers.get("most", numbers["limit"]), numbers["asked"])


class CohortRoom(Check):
    """Of what the tenants of its cohort share, others leave enough for the job."""

    code = WaitReason.COHORT_GPUS
    key = "cohort"
    title = "Cohort"
    claim = "Other tenants of the cohort leave enough of what they share"
    label = "waiting for its cohort"
    scope = Scope.TENANT
    private = frozenset({"limit", "used", "cohort", "cohort_room", "claimed", "borrowed"})
    redacted = "Waiting for its cohort: other tenants use too much of what they share with this one."

    def applies(self, supply: Supply) -> bool:
        return supply.account.cohort is not None

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        enough = gang.asked <= supply.account.cohort_room(gang.asked)
        return None if enough else Finding(self, gang, supply, self.scope)

    def sentence(self, finding: Finding) -> str:
        gang, supply, account = finding.gang, finding.supply, finding.supply.account
        assert account.cohort is not None
        name, room = account.cohort.name, max(0, account.cohort_room(gang.asked))
        own = f"{account.used} of its {account.limit} {unit(supply.slot_type, account.limit)}"
        if not account.borrows(gang.asked):
            return (
                f"Waiting for devices that the tenant lends: it uses {own} and this job needs {gang.asked}, but other"
                f" tenants of cohort {name} have borrowed so many that {room} {_are(room)} left. It gets them back."
            )
        kept = account.cohort.claimed
        for_lenders = (
            f"; {kept} more {_are(kept)} kept for waiting jobs of tenants that lend them" if kept else ""
        )
        return (
            f"Waiting to borrow: the tenant uses {own}, and cohort {name} has {room} left to use now, this job needs"
            f" {gang.asked}{for_lenders}."
        )

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        return Meter(0, numbers["cohort_room"], numbers["asked"]) if "cohort_room" in numbers else None

    def meter_text(self, *, used: int, limit: int, asked: int) -> str:
        return f"needs {asked}, {limit} can be had now"


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
        need = gang.need if pool.only_slots else pool.need(gang)
        if pool.reserved_for is not None and pool.free.capacity(need) >= gang.learners.min:
            return None if pool.fits(gang, supply.now) else Finding(self, gang, supply, Scope.CLUSTER)
        return None

    def numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        """holder: the job that holds the reservation; None if it is another tenant's. until: when its nodes are free
        at the latest; None if that is not known."""
        if self._quota_reserved(gang, supply):
            return {"holder": supply.account.reserved_for, "until": None}
        if self._jobs_reserved(gang, supply):
            return {"holder": supply.jobs.reserved_for[0], "until": None}
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
            by_quota = self._quota_reserved(gang, supply)
            taken = self._of_quota(supply) if by_quota else self._of_jobs(gang, supply)
            return (
                f"Waiting its turn: {taken} for job {holder} ahead in the queue; {needs}."
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
        return account.reserved + gang.asked > account.room(gang.asked)

    @staticmethod
    def _jobs_reserved(gang: Gang, supply: Supply) -> bool:
        """The same of its limit of concurrent jobs. A place of the job itself, or of one after it, is no obstacle."""
        jobs = supply.jobs
        ahead = jobs.reserved_ahead_of(gang.job)
        return jobs.limit is not None and ahead > 0 and jobs.used + ahead + 1 > jobs.limit

    @staticmethod
    def _of_quota(supply: Supply) -> str:
        account = supply.account
        return (
            f"{account.used} of the tenant's {account.most} {unit(supply.slot_type, account.most)}"
            f" {_are(account.used)} in use and {account.reserved} {_are(account.reserved)} reserved"
        )

    @staticmethod
    def _of_jobs(gang: Gang, supply: Supply) -> str:
        jobs = supply.jobs
        ahead = jobs.reserved_ahead_of(gang.job)
        return f"the tenant runs {jobs.used} of at most {jobs.limit} jobs at once and {ahead} {_are(ahead)} reserved"


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
        return (
            f"Waiting for capacity: {numbers['free']} of {numbers['total']}"
            f" {unit(finding.supply.slot_type, numbers['total'])} free, this job needs {finding.gang.asked}"
            f"{_down(numbers)}."
        )

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
        pool = supply.pool
        fits = pool.free.capacity(gang.need) >= gang.learners.min if pool.only_slots else pool.slots_fit(gang)
        return None if fits else Finding(self, gang, supply, self.scope)

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


class _BesideSlots(Check):
    """The nodes with enough free slots have enough of another resource free, too."""

    scope = Scope.CLUSTER
    resource: ClassVar[int]

    def applies(self, supply: Supply) -> bool:
        pool = supply.pool
        return pool is not None and (pool.counts_cpus if self.resource == CPUS else pool.counts_memory)

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        assert supply.pool is not None
        if supply.pool.learners_fitting(gang) >= gang.learners.min:
            return None
        return Finding(self, gang, supply, self.scope) if supply.pool.shortage(gang, self.resource) else None

    def shortage_numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        short = supply.pool.shortage(gang, self.resource) if supply.pool else None
        return _numbers_of(self.resource, short) | {"held_by_others": short.by_others} if short else {}

    def sentence(self, finding: Finding) -> str:
        gang, resource, slot_type = finding.gang, self.resource, finding.supply.slot_type
        assert finding.supply.pool is not None
        short = finding.supply.pool.shortage(gang, resource)
        assert short is not None
        kind = "CPUs" if resource == CPUS else "memory"
        text = (
            f"Waiting for {kind} on nodes with free {unit(slot_type, 0)}: a learner needs"
            f" {amount(resource, short.need)} beside its {_devices(gang, slot_type)}"
        )
        if short.have < short.need:
            text += f"; at most {amount(resource, short.have)} {'is' if resource == MEMORY else 'are'} free on one node"
        else:
            text += f"; only {short.fitting} of {gang.learners.min} learners fit at the same time"
        if short.by_others:
            text += ". Programs outside Luthier hold too much of it: no end of a job frees enough"
        return text + _down(finding.numbers) + "."

    def remedy_for(self, numbers: Mapping[str, Any]) -> Remedy:
        return Remedy.ASK if numbers.get("held_by_others") else self.remedy

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        if numbers.get("resource") != NAMES[self.resource] or numbers["have"] >= numbers["need"]:
            return None
        return Meter(0, math.floor(numbers["have"]), math.ceil(numbers["need"]))

    def meter_text(self, *, used: int, limit: int, asked: int) -> str:
        unit = "CPUs" if self.resource == CPUS else "MiB"
        return f"needs {asked} {unit}, at most {limit} are free on one node"


class NodeCpus(_BesideSlots):
    """Where a GPU learner's slots are free, so are its CPUs."""

    code = WaitReason.NODE_CPUS
    key = "node_cpus"
    title = "CPUs beside the devices"
    claim = "Nodes with free devices have enough free CPUs"
    label = "waiting for CPUs on nodes"
    resource = CPUS


class NodeMemory(_BesideSlots):
    """Where a learner's slots and CPUs are free, so is its memory."""

    code = WaitReason.NODE_MEMORY
    key = "node_memory"
    title = "Memory beside the devices"
    claim = "Nodes with free devices have enough free memory"
    label = "waiting for memory on nodes"
    resource = MEMORY


NAMES = {CPUS: "cpus", MEMORY: "memory_mib"}


def _short_of(gang: Gang, supply: Supply) -> tuple[int, Shortage] | None:
    """What the nodes have too little of, even if nothing else ran."""
    for resource in (CPUS, MEMORY):
        if supply.pool and (short := supply.pool.shortage(gang, resource, empty=True)):
            return resource, short
    return None


def _numbers_of(resource: int, short: Shortage) -> dict[str, Any]:
    """need: per learner; have: the most that a learner can have on one node; in CPUs, or in MiB."""
    per = 1000 if resource == CPUS else 1
    return {
        "resource": NAMES[resource],
        "need": short.need / per,
        "have": short.have / per,
    }


def _devices(gang: Gang, slot_type: str) -> str:
    return f"{gang.slots} {unit(slot_type, gang.slots)}"


def _down(numbers: Mapping[str, Any]) -> str:
    """The end of a sentence about nodes, if some are down."""
    down = numbers["nodes_down"]
    return f"; {down} {'node is' if down == 1 else 'nodes are'} down" if down else ""


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


CHECKS: tuple[Check, ...] = (
    MatchingPool(),
    NodeSize(),
    MaxQuota(),
    ActiveTenant(),
    QuotaRoom(),
    CohortRoom(),
    JobsLimit(),
    Unreserved(),
    Capacity(),
    WholeGang(),
    NodeCpus(),
    NodeMemory(),
)
