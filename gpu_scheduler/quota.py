"""What each tenant uses and can still take: slots per type and live jobs, while one plan is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpu_scheduler.model import Share, TenantState


@dataclass(slots=True)
class Account:
    """One tenant's slots of one type. reserved: slots that its later jobs leave to the job reserved_for."""

    limit: int = 0
    used: int = 0
    reserved: int = 0
    reserved_for: str = ""


@dataclass(slots=True)
class JobCount:
    """One tenant's live jobs; limit None means no limit."""

    suspended: bool = False
    limit: int | None = None
    used: int = 0
    reserved: int = 0


class Ledger:
    """Use and limits of all tenants. A type without a share has limit 0: a tenant has no slots by default.

    with_reservation: the jobs for which something is reserved.
    """

    def __init__(self, shares: Iterable[Share], tenants: Iterable[TenantState]) -> None:
        self._accounts: dict[tuple[str, str], Account] = {
            (share.tenant, share.slot_type): Account(share.limit, share.used) for share in shares
        }
        self._jobs: dict[str, JobCount] = {
            state.tenant: JobCount(state.suspended, state.jobs_limit, state.jobs_used) for state in tenants
        }
        self.with_reservation: set[str] = set()
        self._dominant: dict[str, float] = {}
        for (tenant, _), account in self._accounts.items():
            self._dominant[tenant] = max(self._dominant.get(tenant, 0.0), _part(account))

    def account(self, tenant: str, slot_type: str) -> Account:
        """The tenant's account of that type, an empty one if it has none."""
        key = (tenant, slot_type)
        found = self._accounts.get(key)
        if found is None:
            found = self._accounts[key] = Account()
        return found

    def jobs(self, tenant: str) -> JobCount:
        found = self._jobs.get(tenant)
        if found is None:
            found = self._jobs[tenant] = JobCount()
        return found

    def take(self, tenant: str, slot_type: str, slots: int) -> None:
        """Count one more live job that holds this many slots."""
        account = self.account(tenant, slot_type)
        account.used += slots
        self.jobs(tenant).used += 1
        self._dominant[tenant] = max(self._dominant.get(tenant, 0.0), _part(account))

    def reserve(self, tenant: str, slot_type: str, slots: int, *, job: str) -> None:
        """Reserve slots and one live job of the tenant's limits for this job, against the tenant's later ones.

        Only one job per tenant and type can have a reservation: the first caller wins.
        """
        account = self.account(tenant, slot_type)
        if not account.reserved:
            account.reserved, account.reserved_for = slots, job
            self.with_reservation.add(job)
            self.jobs(tenant).reserved += 1

    def dominant_share(self, tenant: str) -> float:
        """The largest part, over the types, of its quota that the tenant uses: 0 nothing, 1 all of one type.

        Dominant resource fairness with the quotas as weights (Ghodsi et al., NSDI 2011).
        """
        return self._dominant.get(tenant, 0.0)


def _part(account: Account) -> float:
    if account.limit:
        return account.used / account.limit
    return 1.0 if account.used else 0.0
