"""How many slots the tenant may use: its quota, and what its cohort leaves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_scheduler.checks.base import Check, Finding, Meter, Remedy, Scope
from gpu_scheduler.checks.words import are
from gpu_scheduler.draft import Supply
from gpu_scheduler.model import Gang, WaitReason, unit


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


class HasQuota(Check):
    """The tenant has a quota of the type, however small: an opportunistic job takes nothing of it."""

    code = WaitReason.NO_QUOTA
    key = "has_quota"
    title = "Quota"
    claim = "The tenant has a quota of this type"
    label = "no quota"
    remedy = Remedy.ASK
    scope = Scope.TENANT
    queues = False
    private = frozenset({"limit", "used"})
    redacted = "The tenant has no quota for such devices. Ask for one."

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        return None if supply.account.exists else Finding(self, gang, supply, None)

    def sentence(self, finding: Finding) -> str:
        kind = finding.gang.slot_type
        what = f"for {unit(kind, 0)}" if kind else "for any GPU type on which this job fits"
        return (
            f"The tenant has no quota {what}: without one, be it 0, its jobs cannot even use idle ones. Ask a platform"
            " admin."
        )


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
        enough = gang.asked <= supply.account.cohort_room(gang.asked, gang.job)
        return None if enough else Finding(self, gang, supply, self.scope)

    def sentence(self, finding: Finding) -> str:
        gang, supply, account = finding.gang, finding.supply, finding.supply.account
        assert account.cohort is not None
        name, room = account.cohort.name, max(0, account.cohort_room(gang.asked, gang.job))
        own = f"{account.used} of its {account.limit} {unit(supply.slot_type, account.limit)}"
        if not account.borrows(gang.asked):
            return (
                f"Waiting for devices that the tenant lends: it uses {own} and this job needs {gang.asked}, but other"
                f" tenants of cohort {name} have borrowed so many that {room} {are(room)} left. It gets them back."
            )
        claimed, awaited = account.cohort_keeps(gang.asked, gang.job)
        for_others = (
            f"; {claimed} more {are(claimed)} kept for waiting jobs of tenants that lend them"
            if claimed
            else ""
        )
        if awaited:
            for_others += f"; {awaited} more {are(awaited)} kept for jobs for which others are being stopped"
        return (
            f"Waiting to borrow: the tenant uses {own}, and cohort {name} has {room} left to use now, this job needs"
            f" {gang.asked}{for_others}."
        )

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        return Meter(0, numbers["cohort_room"], numbers["asked"]) if "cohort_room" in numbers else None

    def meter_text(self, *, used: int, limit: int, asked: int) -> str:
        return f"needs {asked}, {limit} can be had now"
