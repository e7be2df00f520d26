"""What is reserved for jobs ahead in the queue, of quotas and on nodes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gpu_scheduler.checks.base import Check, Finding, Scope
from gpu_scheduler.checks.words import are
from gpu_scheduler.draft import Supply
from gpu_scheduler.model import Gang, WaitReason, timestamp, unit


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
        if pool is None or pool.reserved_for is None:
            return None
        need = gang.need if pool.only_slots else pool.need(gang)
        if pool.fits_on_free(gang, need) and not pool.fits(gang, supply.now):
            return Finding(self, gang, supply, Scope.CLUSTER)
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
        return {"holder": pool.reserved_for.job if own else None, "until": until and timestamp(until)}

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
        ends = f"{moment(until, supply.now)} at the latest" if until else "that job starts"
        left = free - reserved
        rest = (
            f"so {left} {are(left)} left"
            if left < gang.asked
            else f"and its learners do not fit on the {left} left"
        )
        return (
            f"Waiting its turn: {reserved} of {free} free {unit(supply.slot_type, free)} {are(reserved)} reserved"
            f" for {whose} ahead in the queue, {rest}; {needs}. The reservation holds until {ends}."
        )

    @staticmethod
    def _quota_reserved(gang: Gang, supply: Supply) -> bool:
        """Whether the tenant's quota is reserved for another of its jobs."""
        account = supply.account
        if not account.reserved or account.reserved_for == gang.job:
            return False
        return account.reserved + gang.asked > account.room(gang.asked, gang.job)

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
            f" {are(account.used)} in use and {account.reserved} {are(account.reserved)} reserved"
        )

    @staticmethod
    def _of_jobs(gang: Gang, supply: Supply) -> str:
        jobs = supply.jobs
        ahead = jobs.reserved_ahead_of(gang.job)
        return f"the tenant runs {jobs.used} of at most {jobs.limit} jobs at once and {ahead} {are(ahead)} reserved"


def moment(at: datetime, now: datetime) -> str:
    """14:32 UTC; with the day if that is not today's."""
    return f"{at.astimezone(UTC):{'%H:%M' if at.date() == now.date() else '%d %b %H:%M'}} UTC"
