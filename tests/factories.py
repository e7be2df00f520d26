"""Builders for tests: people, tenants, quotas and jobs in any state, each with sensible defaults.

People: alice (owner), bob (another tenant), carol (viewer beside alice), dave (manager), admin (platform).
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.twofactor.totp import TOTP
from django.utils import timezone

from jobs import blobs
from jobs.blobs.folder import FolderStore
from jobs.blobs.store import store
from jobs.models import Attempt, Blob, Checkpoint, Job, JobEvent, Learner, Progress
from jobs.spec.definition import DEFAULTS
from jobs.states import FINAL, HOLDS_GPUS, EventCode, Intent, State
from tenants import passkeys, two_factor
from tenants.models import Membership, Quota, Tenant, User
from tenants.roles import Role
from tests.passkey_device import ORIGIN, Device

PASSWORD = "correct horse battery staple"
_numbers = itertools.count(1)


def user(
    username: str = "", *, is_superuser: bool = False, password: str | None = None, **fields: Any
) -> User:
    """A person; without a password they cannot log in by form, which keeps tests quick."""
    name = username or f"user{next(_numbers)}"
    person = User(username=name, email=f"{name}@example.org", is_superuser=is_superuser, **fields)
    if password is None:
        person.set_unusable_password()
    else:
        person.set_password(password)
    person.save()
    return person


def authenticator_app(of: User, *, beside: bool = False) -> tuple[str, list[str]]:
    """An app that is set up, of which no code has been used: its secret, for app_code, and the recovery codes.

    beside: another second factor.
    """
    app_id = two_factor.app_begin(of)
    begun = two_factor.app_begun(of, app_id)
    assert begun is not None
    codes = two_factor.app_confirm(of, app_id, app_code(begun.secret), replaces=beside)
    of.authenticator_apps.update(last_step=0)
    return begun.secret, codes


def passkey(of: User, *, name: str = "", origin: str = ORIGIN) -> Device:
    """A device whose passkey was added at this address; its codes: recovery codes, if it is the first factor."""
    device, site = Device(origin), passkeys.Site(origin)
    begun = passkeys.add_begin(of, site)
    answer = device.create(begun.options)
    device.codes = passkeys.add(of, begun.challenge_id, site, answer, name=name)
    device.row = of.passkeys.get(credential_id=device.credential_id)
    return device


def app_code(secret: str, *, steps: int = 0) -> str:
    """What the app shows now, or so many steps from now."""
    app = TOTP(base64.b32decode(secret), 6, SHA1(), 30)  # as all apps do
    return app.generate(time.time() + 30 * steps).decode()


def tenant(slug: str = "", *, quotas: dict[str, int] | None = None, **fields: Any) -> Tenant:
    """A tenant with slots per type, by default 8 CPU slots."""
    slug = slug or f"team{next(_numbers)}"
    made = Tenant.objects.create(slug=slug, name=fields.pop("name", slug.title()), **fields)
    for gpu_type, limit in ({"cpu": 8} if quotas is None else quotas).items():
        quota(made, gpu_type, limit)
    return made


def quota(of: Tenant, gpu_type: str, limit: int, used: int = 0) -> Quota:
    return Quota.objects.create(tenant=of, gpu_type=gpu_type, limit=limit, used=used)


def member(of: Tenant, username: str = "", role: Role = Role.RESEARCHER, **fields: Any) -> User:
    person = user(username, **fields)
    Membership.objects.create(user=person, tenant=of, role=role, accepted_at=timezone.now())
    return person


def spec(**changes: Any) -> dict[str, Any]:
    """A normalized luthier/v1 spec of a one-learner CPU job; resources and the rest by keyword, wrong ones too."""
    resources = {"learners": 1, "gpus": 0, "cpus": 1, "memory": "1Gi"}
    resources.update(changes.pop("resources", {}))
    least = {
        "apiVersion": "luthier/v1",
        "name": "train",
        "framework": "sklearn",
        "code": {"files": {"train.py": "print('hello')\n"}},
        "command": "python train.py",
        "resources": resources,
    }
    return deepcopy(DEFAULTS) | least | changes


def job(
    *,
    owner: User | None = None,
    of: Tenant | None = None,
    state: State = State.QUEUED,
    intent: Intent = Intent.RUN,
    learners: int = 1,
    slots: int = 1,
    gpus: int = 0,
    gpu_type: str = "",
    **fields: Any,
) -> Job:
    """A job with the rows that it would have in this state: its attempt, learners, use of quota and first event."""
    of = of or (owner.memberships.select_related("tenant").get().tenant if owner else tenant())
    owner = owner or member(of)
    holds = state in HOLDS_GPUS
    attempt = fields.pop("attempt", 0 if state == State.QUEUED else 1)
    name = fields.pop("name", "train")
    made = Job.objects.create(
        tenant=of,
        owner=owner,
        name=name,
        spec=fields.pop("spec", None) or spec(name=name, resources={"learners": learners, "gpus": gpus}),
        framework=fields.pop("framework", "sklearn"),
        learners=learners,
        gpus=gpus,
        gpu_type=gpu_type,
        slots=slots,
        placement=fields.pop("placement", "pack"),
        priority=fields.pop("priority", "normal"),
        priority_rank=fields.pop("priority_rank", 1),
        max_restarts=fields.pop("max_restarts", 0),
        state=state,
        intent=intent,
        attempt=attempt,
        event_seq=1,
        finished_at=timezone.now() if state in FINAL else None,
        stop_at=timezone.now() if state == State.STOPPING else None,
        **fields,
    )
    Progress.objects.create(job=made)
    JobEvent.objects.create(
        job=made, tenant=of, n=1, code=EventCode.SUBMITTED, to_state=state, actor=owner, source="user"
    )
    for n in range(1, attempt + 1):
        add_attempt(made, n, held=holds and n == attempt)
    return made


def add_attempt(of: Job, n: int, *, held: bool) -> Attempt:
    """Attempt n with a learner per rank on node-a; a held one uses the tenant's quota, unless it is opportunistic."""
    slot_type = of.gpu_type or "cpu"
    made = Attempt.objects.create(
        job=of,
        tenant=of.tenant,
        n=n,
        cluster="memory",
        slot_type=slot_type,
        slots=of.slots,
        learners=of.learners,
        nodes=["node-a"] * of.learners,
        held=held,
        opportunistic=of.opportunistic,
        closed_at=None if held else timezone.now(),
    )
    for rank in range(of.learners):
        Learner.objects.create(
            job=of,
            tenant=of.tenant,
            attempt=n,
            rank=rank,
            node="node-a",
            secret_sha256=hashlib.sha256(secret(of, n, rank).encode()).hexdigest(),
        )
    if held and not of.opportunistic:
        share, _ = Quota.objects.get_or_create(tenant=of.tenant, gpu_type=slot_type, defaults={"limit": 64})
        Quota.objects.filter(pk=share.pk).update(used=share.used + of.slots * of.learners)
        Tenant.objects.filter(pk=of.tenant_id).update(jobs_used=of.tenant.jobs_used + 1)
        of.tenant.refresh_from_db()
    return made


def secret(of: Job, attempt: int, rank: int) -> str:
    """The secret whose hash the learners built here carry."""
    return f"secret-{of.pk}-{attempt}-{rank}"


def checkpoint(of: Job, *, step: int | None = 10, n: int | None = None, **fields: Any) -> Checkpoint:
    """A committed checkpoint of the job's newest attempt, without files."""
    n = n or of.checkpoints.count() + 1
    return Checkpoint.objects.create(
        job=of,
        tenant=of.tenant,
        n=n,
        attempt=fields.pop("attempt", max(of.attempt, 1)),
        step=step,
        state=fields.pop("state", Checkpoint.State.COMMITTED),
        committed_at=fields.pop("committed_at", timezone.now()),
        **fields,
    )


def bytes_of(blob: Blob) -> Path:
    """The file of a blob, for tests that damage it or look whether it is there."""
    place = store()
    assert isinstance(place, FolderStore)
    return place.path(blobs.key_of(blob.tenant_id, blob.pk))
