"""The demo: two tenants and the five people of the documentation, with one-time passwords and tokens.

Creates what is missing and sets new secrets for these five users; changes nothing else.
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.db import Error as DatabaseError
from django.db import connection, transaction
from django.utils import timezone

from examples import catalog
from gpu_scheduler.clusters.base import ClusterBusy
from jobs import clusters
from jobs.errors import JobError
from jobs.services import job_submit
from tenants.models import Membership, Quota, Tenant, Token, User
from tenants.roles import Role
from tenants.services.quotas import most_allocatable

TENANTS = {"vision-lab": "Vision Lab", "nlp-research": "NLP Research"}
SECOND_SHARE = 8  # the second tenant gets an eighth, so that an admin can raise its limit
FIRST_AT_LEAST = 2  # slots of the largest example, so that every template can start on a new installation
DEMO_LOCK = 0x6C757468  # "luth"
CLUSTER_WAIT_S = 30
CLUSTER_POLL_S = 0.2
TOKEN_NAME = "demo"  # noqa: S105
TOKEN_TTL = timedelta(days=7)


@dataclass(frozen=True)
class Person:
    """One user of the demo; tenant and role empty = platform admin."""

    name: str
    tenant: str = ""
    role: Role | None = None


PEOPLE = (
    Person("alice", "vision-lab", Role.RESEARCHER),
    Person("bob", "nlp-research", Role.RESEARCHER),
    Person("carol", "vision-lab", Role.VIEWER),
    Person("dave", "vision-lab", Role.MANAGER),
    Person("admin"),
)


@dataclass(frozen=True)
class Access:
    """The credentials of one of these users; shown once, not stored."""

    tenant: str | None
    role: str
    password: str
    token: str


class Passwords:
    """One-time passwords of these people. A hash takes a fifth of a second of a core, so that a start makes them while
    it waits for the database."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[str, str]] = {}

    def make_one(self) -> bool:
        """Make one that is not made yet; False if all are."""
        missing = next((person.name for person in PEOPLE if person.name not in self._made), None)
        if missing is not None:
            self.of(missing)
        return missing is not None

    def of(self, name: str) -> tuple[str, str]:
        """The password and its hash."""
        if name not in self._made:
            password = secrets.token_urlsafe(16)
            self._made[name] = password, make_password(password)
        return self._made[name]


def first_start(passwords: Passwords | None = None) -> dict[str, Any]:
    """On a database without people: the demo and its first job; {} otherwise.

    {"users": as make_demo, "job": path of its page} or {"users": …, "job_problem": sentence}.
    """
    with _alone():
        if User.objects.exists():
            return {}
        users = _make(passwords or Passwords())
    return {"users": users} | _first_job()


def make_demo() -> dict[str, dict[str, str | None]]:
    """The five people with new secrets, by name."""
    with _alone():
        return _make(Passwords())


@contextmanager
def _alone() -> Iterator[None]:
    """Take a lock: the first start and `manage.py demo` must not overwrite each other's passwords."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '90s'; SET LOCAL statement_timeout = '90s'")
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [DEMO_LOCK])
        yield


def _make(passwords: Passwords) -> dict[str, dict[str, str | None]]:
    tenants = {slug: _tenant(slug, name) for slug, name in TENANTS.items()}
    _quotas(tenants)
    return {person.name: asdict(_access(person, tenants, passwords)) for person in PEOPLE}


def _first_job() -> dict[str, str]:
    """Submit the example as alice. The demo is useful without it, so a failure is reported, not raised."""
    alice = User.objects.get(username="alice")
    tenant = Tenant.objects.get(slug="vision-lab")
    try:
        job = job_submit(user=alice, tenant=tenant, source=catalog.load(catalog.FIRST_JOB))
    except (JobError, DatabaseError) as error:
        return {"job_problem": str(error)}
    # Not reversed: that would load every page and the REST API on the first start for one URL.
    return {"job": f"/t/{tenant.slug}/jobs/{job.pk}"}


def _tenant(slug: str, name: str) -> Tenant:
    return Tenant.objects.get_or_create(slug=slug, defaults={"name": name})[0]


def _quotas(tenants: dict[str, Tenant]) -> None:
    """Existing limits are not changed."""
    for gpu_type, slots in _capacity_by_type().items():
        for slug, limit in zip(TENANTS, limits(slots), strict=True):
            Quota.objects.get_or_create(tenant=tenants[slug], gpu_type=gpu_type, defaults={"limit": limit})


def _capacity_by_type() -> dict[str, int]:
    """Slots per type over all nodes. Waits for a starting cluster; raises ClusterBusy after CLUSTER_WAIT_S."""
    deadline = time.monotonic() + CLUSTER_WAIT_S
    while True:
        try:
            nodes = clusters.current().nodes()
            break
        except ClusterBusy:
            if time.monotonic() > deadline:
                raise
            time.sleep(CLUSTER_POLL_S)
    capacity: dict[str, int] = {}
    for node in nodes:
        capacity[node.slot_type] = capacity.get(node.slot_type, 0) + node.slots
    return capacity


def limits(slots: int) -> tuple[int, int]:
    """The limits of the two tenants for a number of slots.

    The first gets all of them but one slot by which its limit can still be raised, and at least enough for the largest
    example, which with two slots leaves nothing to raise.
    """
    second = max(1, slots // SECOND_SHARE)
    allowed = most_allocatable(slots, settings.LUTHIER_OVERCOMMIT_MAX)
    return max(min(slots, FIRST_AT_LEAST), min(slots, allowed - second - 1)), second


def _access(person: Person, tenants: dict[str, Tenant], passwords: Passwords) -> Access:
    password, hashed = passwords.of(person.name)
    user, _ = User.objects.get_or_create(
        username=person.name, defaults={"email": f"{person.name}@example.org"}
    )
    user.is_active = True
    user.is_superuser = person.role is None
    user.password = hashed
    user.save()
    tenant = tenants.get(person.tenant)
    if tenant is not None and person.role is not None:
        Membership.objects.update_or_create(
            user=user, tenant=tenant, defaults={"role": person.role, "accepted_at": timezone.now()}
        )
    Token.objects.filter(user=user, name=TOKEN_NAME).delete()
    # Not limited to the tenant, so that jobs shared from other tenants are visible with it.
    _, token = Token.objects.create(user=user, expiry=TOKEN_TTL, name=TOKEN_NAME)
    return Access(
        tenant=person.tenant or None,
        role=person.role.value if person.role else "admin",
        password=password,
        token=token,
    )
