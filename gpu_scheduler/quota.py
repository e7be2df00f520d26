"""What each tenant may still take: slots per type and live jobs, while one plan is being made.

Borrowing between tenants is not known here yet; it would change ``room`` and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpu_scheduler.model import Share, TenantState


@dataclass(slots=True)
class Account:
    """One tenant's slots of one type. kept: slots that kept_by, its first job in line, holds back from others."""

    limit: int = 0
    used: int = 0
    kept: int = 0
    kept_by: str = ""


@dataclass(slots=True)
class JobCount:
    """One tenant's live jobs; limit None means as many as it likes."""

    suspended: bool = False
    limit: int | None = None
    used: int = 0
    kept: int = 0


class Ledger:
    """Use and limits of all tenants. A type without a share has limit 0: nothing is open by omission."""

    def __init__(self, shares: Iterable[Share], tenants: Iterable[TenantState]) -> None:
        self._accounts: dict[tuple[str, str], Account] = {
            (share.tenant, share.slot_type): Account(share.limit, share.used) for share in shares
        }
        self._jobs: dict[str, JobCount] = {
            state.tenant: JobCount(state.suspended, state.jobs_limit, state.jobs_used) for state in tenants
        }
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

    def keep(self, tenant: str, slot_type: str, slots: int, *, job: str) -> None:
        """Hold slots and one job back from the tenant's later jobs, for its first one in line.

        One job per tenant and type can do so: the first caller wins.
        """
        account = self.account(tenant, slot_type)
        if not account.kept:
            account.kept, account.kept_by = slots, job
            self.jobs(tenant).kept += 1

    def kept_from(self, tenant: str, slot_type: str, job: str) -> tuple[int, int]:
        """Slots and live jobs that are held back from this job."""
        account = self.account(tenant, slot_type)
        jobs = self.jobs(tenant)
        if account.kept_by == job:
            return 0, jobs.kept - 1
        return account.kept, jobs.kept

    def dominant_share(self, tenant: str) -> float:
        """The largest part, over the types, of its quota that the tenant uses: 0 nothing, 1 all of one type.

        Dominant resource fairness with the quotas as weights (Ghodsi et al., NSDI 2011).
        """
        return self._dominant.get(tenant, 0.0)


def _part(account: Account) -> float:
    if account.limit:
        return account.used / account.limit
    return 1.0 if account.used else 0.0
