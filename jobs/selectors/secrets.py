"""Which jobs use which secrets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from django.db.models import F, QuerySet

from jobs.models import Job
from jobs.states import FINAL
from tenants.models import Secret, Tenant, User

Users = Mapping[str, Sequence[str]]


def users_of_own(user: User) -> Users:
    """By the name of each of the user's own secrets, the ids of their jobs that name it and have not ended."""
    return _by_name(_granted().filter(owner=user))


def users_of_tenant(tenant: Tenant) -> Users:
    """By name, the ids of the tenant's jobs that name it and have not ended, without those whose owner has a secret of
    that name, which wins."""
    jobs = _granted().filter(tenant=tenant)
    owners = {owner for _, owner, _ in jobs}
    own = set(Secret.objects.filter(user__in=owners).values_list("name", "user_id")) if owners else set()
    return _by_name(jobs, own)


def _granted() -> QuerySet[Job, tuple[str, int, Mapping[str, str]]]:
    rows = Job.objects.filter(deleted_at=None, spec__has_key="secrets").exclude(state__in=FINAL)
    return rows.order_by("-pk").values_list("pk", "owner_id", F("spec__secrets"))


def _by_name(
    jobs: QuerySet[Job, tuple[str, int, Mapping[str, str]]],
    own: set[tuple[str, int]] | frozenset[tuple[str, int]] = frozenset(),
) -> Users:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for job, owner, granted in jobs:
        for name in sorted(set(granted.values())):
            if (name, owner) not in own:
                found[name].append(job)
    return found
