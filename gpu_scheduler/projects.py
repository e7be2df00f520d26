"""The projects of tenants: what each one uses of its tenant's slots, which comes first, and what it can have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpu_scheduler.model import Gang, Project, Running

NO_PROJECT = ""
"""The name under which jobs count that are in no project of their tenant."""


@dataclass(slots=True)
class ProjectAccount:
    """One project's slots of one type. guarantee: those for which it comes first in its tenant. limit: the most that it
    holds; None: what its tenant can have. reserved: what its later jobs leave to the job reserved_for."""

    name: str = NO_PROJECT
    guarantee: int = 0
    limit: int | None = None
    used: int = 0
    reserved: int = 0
    reserved_for: str = ""

    def reserved_ahead_of(self, job: str) -> int:
        """Slots of its limit that are kept for another job."""
        return 0 if self.reserved_for == job else self.reserved

    def allows(self, slots: int) -> bool:
        """Whether its jobs can have so many more."""
        return self.limit is None or self.used + slots <= self.limit


Accounts = dict[str, ProjectAccount]
"""By name, the projects of one tenant with their slots of one type."""


class Projects:
    """What all projects have and use. A tenant that has none is not counted here at all.

    most: by tenant and slot type, the slots that the tenant can use at most. A project's limit that is no lower limits
    nothing: then the tenant's own does.
    """

    def __init__(
        self, projects: Iterable[Project], most: Mapping[tuple[str, str], int], running: Iterable[Running]
    ) -> None:
        self._weights = {(project.tenant, project.name): project.weight for project in projects}
        self.tenants = frozenset(tenant for tenant, _ in self._weights)
        self._most: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._accounts: defaultdict[tuple[str, str], Accounts] = defaultdict(dict)
        for (tenant, slot_type), slots in most.items() if self.tenants else ():
            if tenant in self.tenants:
                self._most[tenant][slot_type] = slots
        for project in projects:
            for share in project.shares:
                slots = self._most[project.tenant].get(share.slot_type, 0)
                limit = None if share.limit is None or share.limit >= slots else share.limit
                account = ProjectAccount(project.name, share.guarantee, limit)
                self._accounts[project.tenant, share.slot_type][project.name] = account
        for run in running if self.tenants else ():
            self.take(run.gang, run.slot_type, run.slots * len(run.nodes))

    def of(self, tenant: str, slot_type: str) -> Accounts:
        """The tenant's projects with their slots of that type; empty for a tenant without projects."""
        return self._accounts[tenant, slot_type] if tenant in self.tenants else {}

    def account(self, gang: Gang, slot_type: str) -> ProjectAccount:
        """That of the gang's project. One that does not exist, or no longer, has no guarantee and no limit."""
        if gang.tenant not in self.tenants:
            return NONE
        name = gang.project if (gang.tenant, gang.project) in self._weights else NO_PROJECT
        accounts = self._accounts[gang.tenant, slot_type]
        found = accounts.get(name)
        if found is None:
            found = accounts[name] = ProjectAccount(name)
        return found

    def take(self, gang: Gang, slot_type: str, slots: int) -> None:
        """Count so many more slots as used by the gang's project; fewer, if less than 0."""
        if gang.tenant in self.tenants:
            self.account(gang, slot_type).used += slots

    def rank(self, gang: Gang, slot_types: Iterable[str]) -> tuple[bool, float]:
        """How soon the gang's project has its turn, the lowest first: those below their guarantee of one of the types,
        then those that use the smallest part of what the tenant can have, by their weight.

        Whether the guarantee covers all of the gang does not matter: one that is too large, or never starts, would hide
        the smaller ones behind it. So the last start can exceed the guarantee.
        """
        tenant = gang.tenant
        accounts = [self.account(gang, slot_type) for slot_type in slot_types]
        below = any(account.used < account.guarantee for account in accounts)
        weight = self._weights.get((tenant, gang.project), 1)
        share = max(
            (
                self.account(gang, slot_type).used / (slots or 1)
                for slot_type, slots in self._most[tenant].items()
            ),
            default=0.0,
        )
        return not below, share / weight

    def of_type(self, slot_type: str) -> Projects:
        """A copy of what concerns this type, to be changed by itself."""
        found = Projects((), {}, ())
        found._weights, found.tenants, found._most = self._weights, self.tenants, self._most
        for key, accounts in self._accounts.items():
            if key[1] == slot_type:
                found._accounts[key] = {name: replace(account) for name, account in accounts.items()}
        return found


NONE = ProjectAccount()
"""That of every tenant without projects: it allows everything. Never changed."""
