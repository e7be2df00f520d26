"""The world of the isolation matrix: two tenants, everybody who may knock, and one thing of every kind to knock at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from allauth.socialaccount.models import SocialAccount
from django.test import Client

from jobs import archives, blobs
from jobs.models import CheckpointFile, ClusterNode, Job, Learner, ResultFile, Runtime
from jobs.services.sharing import SharePermission, job_share
from jobs.states import State
from tenants.models import Tenant, Token, User
from tenants.roles import Role
from tenants.services.accounts import account_create, account_token_create
from tenants.services.identities import ID_LENGTH, PROVIDER, Identity
from tenants.services.projects import Change as ProjectChange
from tenants.services.projects import project_changes_apply
from tenants.services.secrets import secret_set
from tenants.services.sessions import public_id as session_id
from tenants.services.views import view_create
from tenants.sessions import row_key
from tenants.tokens import public_id
from tests import factories


class Who(StrEnum):
    """Every kind of caller of tenant A's routes; alice owns a job there."""

    ANONYMOUS = "anonymous"  # neither token nor session
    STRANGER = "stranger"  # bob, a manager elsewhere
    GUEST = "guest"  # gina, to whom alice's jobs were shown
    OPERATOR = "operator"  # olga, to whom alice's jobs were entrusted
    VIEWER = "viewer"  # carol
    COLLEAGUE = "colleague"  # erin, another researcher
    OWNER = "owner"  # alice
    MANAGER = "manager"  # dave
    ADMIN = "admin"
    LEARNER = "learner"  # the secret of the job's own learner
    OTHER_LEARNER = "other learner"  # the secret of another job's learner


ISSUER = "http://127.0.0.1:9"
"""Of single sign-on, where it is on: its routes exist, and it does not respond."""
TABS = ("metrics", "logs", "learners", "events", "checkpoints", "spec")
LEARNERS = frozenset({Who.LEARNER, Who.OTHER_LEARNER})


@dataclass(frozen=True)
class World:
    """users: everybody with an account. things: what stands in for the variable parts of an address."""

    users: dict[Who, User]
    secrets: dict[Who, str]
    tenant: Tenant
    things: dict[str, Any]


MISSING: dict[str, Any] = {
    "t": "no-such-team",
    "slug": "no-such-team",
    "job_id": "000000000000",
    "running": "000000000000",
    "halted": "000000000000",
    "done": "000000000000",
    "failed": "000000000000",
    "view_id": 999,
    "attempt": 999,
    "rank": 999,
}
"""What takes the place of a real name when the answer for a missing thing is wanted."""


def build() -> World:
    """Make the world. Alice's jobs: running (with log, checkpoint, result), halted, done, failed."""
    here, there = factories.tenant("vision-lab"), factories.tenant("nlp-research")
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=64)
    Runtime.objects.create(slug="sklearn", title="scikit-learn")
    Runtime.objects.create(slug="own", title="Own", requirements=["tqdm"])
    users = {
        Who.STRANGER: factories.member(there, "bob", Role.MANAGER),
        Who.GUEST: factories.user("gina"),
        Who.OPERATOR: factories.user("olga"),
        Who.VIEWER: factories.member(here, "carol", Role.VIEWER),
        Who.COLLEAGUE: factories.member(here, "erin"),
        Who.OWNER: factories.member(here, "alice"),
        Who.MANAGER: factories.member(here, "dave", Role.MANAGER),
        Who.ADMIN: factories.user("admin", is_superuser=True),
    }
    alice = users[Who.OWNER]
    running = factories.job(owner=alice, of=here, state=State.PROCESSING, name="secret-project")
    halted = factories.job(owner=alice, of=here, state=State.HALTED, intent="HALT", name="secret-halted")
    done = factories.job(owner=alice, of=here, state=State.COMPLETED, name="secret-done")
    failed_job = factories.job(owner=alice, of=here, state=State.FAILED, name="secret-failed")
    for job in (running, halted, done, failed_job):
        job_share(user=alice, job_id=job.pk, username="gina", permission=SharePermission.VIEW)
        job_share(user=alice, job_id=job.pk, username="olga", permission=SharePermission.OPERATE)
        _fill(job)
    Learner.objects.filter(job=running).update(checks_save=True)
    foreign = factories.job(of=there, owner=users[Who.STRANGER], state=State.PROCESSING)
    dave = users[Who.MANAGER]
    account_create(user=dave, tenant=here, name="ci")
    account_token, _ = account_token_create(user=dave, tenant=here, name="ci", token_name="nightly")
    secret_set(user=dave, tenant=here, name="wandb", value="of the tenant")
    secret_set(user=alice, name="mine", value="of alice alone")
    project = ProjectChange("speech", "", {"weight": 1})
    made = project_changes_apply(user=dave, tenant=here, changes=[project], reason="made")
    failed = {"state": "FAILED"}
    own_view = view_create(user=alice, tenant=here, name="Mine that failed", filters=failed | {"owner": "me"})
    shared_view = view_create(user=dave, tenant=here, name="All that failed", filters=failed, shared=True)
    own_token, _ = Token.objects.create(user=alice, name="mine")
    there_too = Identity(ISSUER, "alice-there")
    SocialAccount.objects.create(
        user=alice, provider=PROVIDER, uid=there_too.uid, extra_data=there_too.stored
    )
    return World(
        users=users,
        secrets={
            Who.LEARNER: factories.secret(running, 1, 0),
            Who.OTHER_LEARNER: factories.secret(foreign, 1, 0),
        },
        tenant=here,
        things={
            "runtime": "own",
            "t": here.slug,
            "slug": here.slug,
            "job_id": running.pk,
            "running": running.pk,
            "halted": halted.pk,
            "done": done.pk,
            "failed": failed_job.pk,
            "attempt": 1,
            "rank": 0,
            "n": 1,
            "path": "model.pt",
            "username": "carol",
            "guest": "gina",
            "name": "ci",
            "tenant_secret": "wandb",
            "own_secret": "mine",
            "change_set": made.id,
            "passkey_id": factories.passkey(alice).row.pk,
            "view_id": own_view.pk,
            "shared_view_id": shared_view.pk,
            "gpu_type": "cpu",
            "token_id": public_id(own_token),
            "account_token": public_id(account_token),
            "owner": "alice",
            "session_id": session_id(_session_of(alice)),
            "identity_id": there_too.uid[:ID_LENGTH],
            "rest": "no/such/path",
            "file_id": CheckpointFile.objects.get(checkpoint__job=running).pk,
            "blob_id": CheckpointFile.objects.get(checkpoint__job=running).blob_id,
            "guide": "job-spec",
            "disable_verb": "disable",
            "halt_verb": "halt",
            "cancel_verb": "cancel",
            "checkpoint_verb": "checkpoint",
            "resume_verb": "resume",
            "share_verb": "share",
            "unshare_verb": "unshare",
            "delete_verb": "delete",
            **{f"{tab}_tab": tab for tab in TABS},
        },
    )


def _session_of(user: User) -> str:
    """The key of the row of a session in which the user is signed in."""
    client = Client()
    client.force_login(user)
    return row_key(client.session)


def _fill(job: Job) -> None:
    """A checkpoint, a result and code, of one file each."""
    blob = blobs.put(job.tenant_id, f"weights of {job.pk}".encode())
    job.code = blobs.put(job.tenant_id, archives.pack([("model.pt", f"code of {job.pk}")]))
    job.save(update_fields=["code"])
    saved = factories.checkpoint(job)
    CheckpointFile.objects.create(checkpoint=saved, tenant_id=job.tenant_id, path="model.pt", blob=blob)
    ResultFile.objects.create(
        job=job, tenant_id=job.tenant_id, attempt=max(job.attempt, 1), rank=0, path="model.pt", blob=blob
    )
