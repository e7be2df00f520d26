"""Which jobs use which secrets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from django.db.models import F, QuerySet

from jobs.models import Job
from jobs.states import ACTIVE
from tenants.models import Secret, Tenant, User


class Using(NamedTuple):
    """A job that names secrets. tenant: its slug; granted: variable -> name."""

    id: str
    tenant: str
    owner: int
    granted: Mapping[str, str]


Users = Mapping[str, Sequence[Using]]


def users_of_own(user: User) -> Users:
    """By the name of each of the user's own secrets, their jobs that name it and have not ended, newest first."""
    return _by_name(_using().filter(owner=user))


def users_of_tenant(tenant: Tenant) -> Users:
    """By name, the tenant's jobs that name it and have not ended, newest first, without those whose owner has a secret
    of that name, which wins."""
    rows = _using().filter(tenant=tenant)
    owners = set(rows.values_list("owner_id", flat=True))
    own = Secret.objects.filter(user__in=owners).values_list("name", "user_id") if owners else ()
    return _by_name(rows, set(own))


def _using() -> QuerySet[Job]:
    return Job.objects.filter(deleted_at=None, state__in=ACTIVE, spec__has_key="secrets")


def _by_name(jobs: QuerySet[Job], won: Collection[tuple[str, int]] = ()) -> Users:
    """won: names of secrets that owners have of their own, with the owner."""
    found: defaultdict[str, list[Using]] = defaultdict(list)
    for row in jobs.order_by("-pk").values_list("pk", "tenant__slug", "owner_id", F("spec__secrets")):
        job = Using(*row)
        for name in sorted(set(job.granted.values())):
            if (name, job.owner) not in won:
                found[name].append(job)
    return found
