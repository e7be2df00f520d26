"""Who may use how many slots: quotas, what tenants of a cohort lend each other, and limits on live jobs and users.

A cohort is a group of tenants. Each one keeps ``limit - lending_limit`` slots of a type for itself; what is left of
all limits together is shared: every tenant of the cohort can use it, a lender before others. So each tenant can always
get back its limit, and all of them together never hold more than the sum of their limits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

from gpu_scheduler.model import CPU_TYPE, Budget, Gang, Project, QuotaUse, Running, TenantState
from gpu_scheduler.projects import Projects


@dataclass(slots=True, eq=False)
class Cohort:
    """What the tenants of a cohort share of one slot type, in slots.

    shared: what they lend at most, together. taken: what of it is in use, by lenders, too. claimed: what lenders'
    waiting jobs will take of it, which is not to be borrowed. awaited: what the jobs awaited_by will borrow of it, for
    which runs leave by order; other borrowers leave it to them.
    """

    name: str
    shared: int = 0
    taken: int = 0
    claimed: int = 0
    awaited: int = 0
    awaited_by: tuple[str, ...] = ()


@dataclass(slots=True)
class Account:
    """One tenant's slots of one type.

    limit: its quota, its own whenever it asks. most: what it can use at most, with what it borrows. kept: the part of
    the limit that it never lends. reserved: slots that its later jobs leave to the job reserved_for. cohort: None if it
    lends and borrows nothing. gang_limit: the most that one job holds; None: no limit. exists: the tenant has a quota
    of the type, be it 0.
    """

    limit: int = 0
    used: int = 0
    reserved: int = 0
    reserved_for: str = ""
    most: int = 0
    kept: int = 0
    weight: int = 1
    cohort: Cohort | None = None
    gang_limit: int | None = None
    exists: bool = False

    @property
    def borrowed(self) -> int:
        """Slots in use beyond the limit that other tenants lend; 0 without a cohort, also if the limit was lowered."""
        return max(0, self.used - self.limit) if self.cohort else 0

    def borrows(self, asked: int) -> bool:
        """Whether so many more slots are more than its own."""
        return self.cohort is not None and self.used + asked > self.limit

    def of_shared(self, used: int) -> int:
        """What so much use takes of the slots that the cohort shares."""
        return max(0, used - self.kept)

    def cohort_room(self, asked: int, job: str = "") -> int:
        """How many slots its cohort leaves to it, for a job that asks for so many. A job that would borrow gets none
        that a lender's waiting job claims, or that another borrower awaits."""
        if self.cohort is None:
            return self.limit - self.used
        kept = sum(self.cohort_keeps(asked, job))
        return max(0, self.kept - self.used) + self.cohort.shared - self.cohort.taken - kept

    def cohort_keeps(self, asked: int, job: str = "") -> tuple[int, int]:
        """How many slots its cohort keeps from such a job: for lenders' jobs, and for borrowers that await them."""
        if self.cohort is None or self.used + asked <= self.limit:
            return 0, 0
        return self.cohort.claimed, 0 if job in self.cohort.awaited_by else self.cohort.awaited

    def room(self, asked: int, job: str = "") -> int:
        """How many slots it can have now, for a job that asks for so many."""
        room = self.most - self.used
        return room if self.cohort is None else min(room, self.cohort_room(asked, job))

    def take(self, slots: int) -> None:
        before, self.used = self.used, self.used + slots
        if self.cohort is not None:
            self.cohort.taken += self.of_shared(self.used) - self.of_shared(before)


LEAST_RUN_S = 60
"""A GPU job starts only if the budget lasts for so long of its own run, beside as long of all that run. What an attempt
counts can shrink when it is closed: what was stopped at the budget's end must not start for this again and again."""


@dataclass(slots=True)
class JobCount:
    """One tenant's live jobs; limit None means no limit. reserved_for: the jobs that one is reserved for, the first
    first. max_time_s: the longest that one can be allowed to run; None: no limit. budget: None: GPU-hours have none.
    gpus: those that jobs hold which count against it."""

    suspended: bool = False
    limit: int | None = None
    used: int = 0
    reserved_for: list[str] = field(default_factory=list)
    max_time_s: int | None = None
    budget: Budget | None = None
    gpus: int = 0

    def budget_lasts(self, gpus: int) -> bool:
        """Whether so many more GPUs can be used for LEAST_RUN_S, beside those that are."""
        return self.budget is None or self.budget.left_gpu_s >= (self.gpus + gpus) * LEAST_RUN_S

    def can_start(self, gang: Gang) -> bool:
        """Whether the tenant as a whole starts such a job now, whatever its quotas leave."""
        return not self.suspended and (not counts(gang, gang.slot_type) or self.budget_lasts(gang.asked))

    def reserved_ahead_of(self, job: str) -> int:
        """How many are reserved for others before this job."""
        return self.reserved_for.index(job) if job in self.reserved_for else len(self.reserved_for)


def counts(gang: Gang, slot_type: str | None) -> bool:
    """Whether what it holds of this type counts against its tenant's GPU-hour budget."""
    return slot_type != CPU_TYPE and not gang.opportunistic


@dataclass(slots=True)
class UserLimits:
    """What each user of one tenant can have and has: slots of one type, and live jobs of any. None: no limit.

    used: slots by user; live: jobs by user, shared by the tenant's types. reserved: by user, the slots that the user's
    later jobs leave to a job, and that job. reserved_for: by user, the jobs that one live job is reserved for, the
    first first, shared as live is.
    """

    slots: int | None = None
    jobs: int | None = None
    used: Counter[str] = field(default_factory=Counter)
    live: Counter[str] = field(default_factory=Counter)
    reserved: dict[str, tuple[int, str]] = field(default_factory=dict)
    reserved_for: dict[str, list[str]] = field(default_factory=dict)

    def reserved_ahead_of(self, job: str, user: str) -> int:
        """Slots of the user's limit that are kept for another job."""
        slots, holder = self.reserved.get(user, (0, job))
        return 0 if holder == job else slots

    def jobs_ahead_of(self, job: str, user: str) -> list[str]:
        """The user's jobs that have one live job each reserved before this one."""
        jobs = self.reserved_for.get(user, [])
        return jobs[: jobs.index(job)] if job in jobs else jobs

    def allow(self, user: str, *, slots: int, jobs: int) -> bool:
        """Whether the user can have so many more."""
        return (self.slots is None or self.used[user] + slots <= self.slots) and (
            self.jobs is None or self.live[user] + jobs <= self.jobs
        )


class Ledger:
    """Use and limits of all tenants. A type without a quota has limit 0: a tenant has no slots by default.

    with_reservation: the jobs for which something is reserved. lends: whether any quota is in a cohort. limits_users:
    the tenants that limit their users; what those use is read from running. opportunistic: by tenant and type,
    the slots that such gangs were given, which count only against the limits of users.
    """

    def __init__(
        self,
        quotas: Iterable[QuotaUse],
        tenants: Iterable[TenantState] = (),
        running: Iterable[Running] = (),
        projects: Sequence[Project] = (),
    ) -> None:
        tenants = tuple(tenants)
        running = tuple(running)
        self._accounts: dict[tuple[str, str], Account] = {}
        self._cohorts: dict[tuple[str, str], Cohort] = {}
        self._jobs: dict[str, JobCount] = {
            state.tenant: JobCount(
                state.suspended,
                state.jobs_limit,
                state.jobs_used,
                max_time_s=state.max_time_s,
                budget=state.budget,
            )
            for state in tenants
        }
        self._users: dict[tuple[str, str], UserLimits] = {}
        self._live: dict[str, Counter[str]] = {}
        self._reserved_for: dict[str, dict[str, list[str]]] = {}
        self._user_jobs = {
            state.tenant: state.user_jobs_limit for state in tenants if state.user_jobs_limit is not None
        }
        self.with_reservation: set[str] = set()
        self.opportunistic: Counter[tuple[str, str]] = Counter()
        self._dominant: dict[str, float] = {}
        in_cohorts = []
        for quota in quotas:
            account = Account(
                quota.limit, quota.used, most=quota.limit, gang_limit=quota.gang_limit, exists=True
            )
            if quota.user_limit is not None:
                self.users(quota.tenant, quota.slot_type).slots = quota.user_limit
            self._accounts[quota.tenant, quota.slot_type] = account
            tenant = quota.tenant
            self._dominant[tenant] = max(self._dominant.get(tenant, 0.0), _utilization(account))
            if quota.cohort:
                in_cohorts.append(quota)
        self.lends = bool(in_cohorts)
        self._form_cohorts(in_cohorts)
        self.limits_users = frozenset({tenant for tenant, _ in self._users} | self._user_jobs.keys())
        for run in running if any(each.budget for each in self._jobs.values()) else ():
            if counts(run.gang, run.slot_type):
                self.jobs(run.tenant).gpus += run.slots * len(run.nodes)
        for run in running if self.limits_users else ():
            self._count_user(run.tenant, run.gang.user, run.slot_type, run.slots * len(run.nodes))
        most = {key: account.most for key, account in self._accounts.items()} if projects else {}
        self.projects = Projects(projects, most, running)

    def _form_cohorts(self, quotas: Iterable[QuotaUse]) -> None:
        quotas = list(quotas)
        for quota in quotas:
            account = self._accounts[quota.tenant, quota.slot_type]
            key = (quota.cohort, quota.slot_type)
            cohort = account.cohort = self._cohorts.setdefault(key, Cohort(quota.cohort))
            account.kept, account.weight = quota.limit - quota.lends, quota.weight
            cohort.shared += quota.lends
            cohort.taken += account.of_shared(quota.used)
        for quota in quotas:
            account = self._accounts[quota.tenant, quota.slot_type]
            assert account.cohort is not None
            of_others = account.cohort.shared - quota.lends
            account.most += (
                of_others if quota.borrowing_limit is None else min(of_others, quota.borrowing_limit)
            )

    def account(self, tenant: str, slot_type: str) -> Account:
        """The tenant's account of that type, an empty one if it has none."""
        key = (tenant, slot_type)
        found = self._accounts.get(key)
        if found is None:
            found = self._accounts[key] = Account()
        return found

    def mates(self, cohort: Cohort, slot_type: str) -> set[str]:
        """The tenants that share this cohort's slots of a type."""
        return {
            tenant
            for (tenant, of_type), account in self._accounts.items()
            if of_type == slot_type and account.cohort is cohort
        }

    def jobs(self, tenant: str) -> JobCount:
        found = self._jobs.get(tenant)
        if found is None:
            found = self._jobs[tenant] = JobCount()
        return found

    def users(self, tenant: str, slot_type: str) -> UserLimits:
        """What the tenant's users can have and have of that type."""
        key = (tenant, slot_type)
        found = self._users.get(key)
        if found is None:
            found = self._users[key] = UserLimits(
                jobs=self._user_jobs.get(tenant),
                live=self._live.setdefault(tenant, Counter()),
                reserved_for=self._reserved_for.setdefault(tenant, {}),
            )
        return found

    def of_type(self, slot_type: str) -> Ledger:
        """A copy of what concerns this type, to be changed by itself."""
        found = copy(self)
        found._accounts = {key: copy(each) for key, each in self._accounts.items() if key[1] == slot_type}
        cohorts = {key: copy(each) for key, each in self._cohorts.items() if key[1] == slot_type}
        for account in found._accounts.values():
            if account.cohort is not None:
                account.cohort = cohorts[account.cohort.name, slot_type]
        found._cohorts = cohorts
        found._jobs = {tenant: copy(each) for tenant, each in self._jobs.items()}
        found._dominant = self._dominant.copy()
        found._live = {tenant: each.copy() for tenant, each in self._live.items()}
        found._users = {
            key: replace(each, used=each.used.copy(), live=found._live[key[0]])
            for key, each in self._users.items()
            if key[1] == slot_type
        }
        if self.projects.tenants:
            found.projects = self.projects.of_type(slot_type)
        return found

    def _count_user(self, tenant: str, user: str, slot_type: str, slots: int, jobs: int = 1) -> None:
        if tenant in self.limits_users:
            users = self.users(tenant, slot_type)
            users.used[user] += slots
            users.live[user] += jobs

    def take(self, gang: Gang, slot_type: str, slots: int) -> None:
        """Count this gang as one more live job, which holds this many slots."""
        account = self._take(gang, slot_type, slots, 1)
        share = max(self._dominant.get(gang.tenant, 0.0), _utilization(account))
        self._dominant[gang.tenant] = share

    def release(self, gang: Gang, slot_type: str, slots: int) -> None:
        """Count this live job and its slots no more. Of a copy (``of_type``) only: shares stay."""
        self._take(gang, slot_type, -slots, -1)

    def _take(self, gang: Gang, slot_type: str, slots: int, jobs: int) -> Account:
        self._count_user(gang.tenant, gang.user, slot_type, slots, jobs)
        if gang.opportunistic:
            self.opportunistic[gang.tenant, slot_type] += slots
            return self.account(gang.tenant, slot_type)
        self.projects.take(gang, slot_type, slots)
        account = self.account(gang.tenant, slot_type)
        account.take(slots)
        tenants_jobs = self.jobs(gang.tenant)
        tenants_jobs.used += jobs
        if counts(gang, slot_type):
            tenants_jobs.gpus += slots
        return account

    def reserve(self, tenant: str, slot_type: str, slots: int, *, job: str) -> bool:
        """Reserve slots and one live job of the tenant's limits for this job, against the tenant's later ones.

        False if there is a reservation already: the first job per tenant and type wins.
        """
        account = self.account(tenant, slot_type)
        if account.reserved:
            return False
        account.reserved, account.reserved_for = slots, job
        self.with_reservation.add(job)
        reserved_for = self.jobs(tenant).reserved_for
        if job not in reserved_for:
            reserved_for.append(job)
        return True

    def reserve_of_user(self, tenant: str, user: str, slot_type: str, slots: int, *, job: str) -> bool:
        """Reserve slots and one live job of the user's own limits for this job, against the user's later ones.

        False if there are no such limits, or a reservation already: the first job per user and type wins.
        """
        users = self.users(tenant, slot_type)
        if (users.slots is None and users.jobs is None) or user in users.reserved:
            return False
        users.reserved[user] = slots, job
        self.with_reservation.add(job)
        reserved_for = users.reserved_for.setdefault(user, [])
        if job not in reserved_for:
            reserved_for.append(job)
        return True

    def reserve_of_project(self, gang: Gang, slot_type: str, slots: int) -> bool:
        """Reserve slots of its project's limit for this gang, against the project's later ones.

        False if there is no such limit, or a reservation already: the first job per project and type wins.
        """
        account = self.projects.account(gang, slot_type)
        if account.limit is None or account.reserved:
            return False
        account.reserved, account.reserved_for = slots, gang.job
        self.with_reservation.add(gang.job)
        return True

    def claim(self, tenant: str, slot_type: str, slots: int) -> None:
        """Keep what the tenant's waiting jobs will take of its limit from being borrowed."""
        account = self.account(tenant, slot_type)
        if account.cohort is not None:
            used = min(account.used + slots, max(account.limit, account.used))
            account.cohort.claimed += account.of_shared(used) - account.of_shared(account.used)

    def dominant_share(self, tenant: str) -> float:
        """The largest utilization of the tenant's quotas over all types: 0 nothing, 1 all of one type.

        Dominant resource fairness with the quotas as weights (Ghodsi et al., NSDI 2011).
        """
        return self._dominant.get(tenant, 0.0)

    def borrowed_share(self, tenant: str, slot_types: Iterable[str]) -> float:
        """The largest part of a cohort's shared slots that the tenant borrows, over these types, by its weight."""
        accounts = [self.account(tenant, slot_type) for slot_type in slot_types]
        return max(
            (
                account.borrowed / (account.cohort.shared or 1) / account.weight
                for account in accounts
                if account.cohort
            ),
            default=0.0,
        )


def _utilization(account: Account) -> float:
    if account.limit:
        return account.used / account.limit
    return 1.0 if account.used else 0.0


@dataclass(frozen=True, slots=True)
class Loan:
    """Slots of one type that a tenant uses beyond its limit, and whose they are."""

    lender: str
    borrower: str
    cohort: str
    slot_type: str
    slots: int


def loans(quotas: Iterable[QuotaUse]) -> list[Loan]:
    """Who lends how much to whom now.

    A cohort shares one stock, so whose slots a borrower has is a matter of count: the lender with the most idle ones
    is named first. What no limit covers, because one was lowered, is no loan.
    """
    stocks: defaultdict[tuple[str, str], list[QuotaUse]] = defaultdict(list)
    for quota in sorted(quotas, key=lambda quota: (quota.cohort, quota.slot_type, quota.tenant)):
        if quota.cohort:
            stocks[quota.cohort, quota.slot_type].append(quota)
    return [loan for mates in stocks.values() for loan in _loans_of_stock(mates)]


def _loans_of_stock(mates: Sequence[QuotaUse]) -> Iterator[Loan]:
    idle = [
        (-slots, n)
        for n, quota in enumerate(mates)
        if (slots := min(quota.lends, quota.limit - quota.used)) > 0
    ]
    heapify(idle)
    for borrower in mates:
        missing = borrower.used - borrower.limit
        while missing > 0 and idle:
            most, n = heappop(idle)
            slots = min(missing, -most)
            missing -= slots
            if slots < -most:
                heappush(idle, (most + slots, n))
            yield Loan(mates[n].tenant, borrower.tenant, borrower.cohort, borrower.slot_type, slots)
