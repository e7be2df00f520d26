"""People, tenants and what a tenant may use."""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.contrib.sessions.base_session import AbstractBaseSession, BaseSessionManager
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from knox.models import AbstractAuthToken

from tenants import search
from tenants.roles import Role


def default_priorities() -> list[str]:
    return ["low", "normal", "high"]


def role_choices() -> list[tuple[str, str]]:
    return [(role.value, role.value) for role in Role]


NO_PASSWORD = Q(("password__startswith", "!"))
"""Of users who have none, as Django stores it."""


class User(AbstractUser):
    """A person who logs in, or a service account, which cannot. is_superuser marks a platform admin."""

    is_service_account = models.BooleanField(default=False)
    last_tenant = models.ForeignKey(
        "Tenant", null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    preferences: models.JSONField[Any, Any] = models.JSONField(default=dict, blank=True)

    class Meta(AbstractUser.Meta):
        abstract = False
        constraints = [
            models.CheckConstraint(
                condition=Q(is_service_account=False) | (NO_PASSWORD & Q(is_superuser=False)),
                name="service_account_without_login",
            )
        ]

    token: Token | None = None
    """The API token this caller came with, if any; set by tenants.tokens, never stored."""
    roles: dict[int, str] | None = None
    """By tenant, the roles that tenants.access has read for this request already, "" for none. None remembers nothing,
    for callers that outlive a request. Never stored."""
    one_time_id: int | None = None
    """Of the one-time password by which this caller signs in, if any; set by tenants.backends, never stored."""

    @property
    def is_platform_admin(self) -> bool:
        return self.is_active and self.is_superuser


class Session(AbstractBaseSession):
    """A browser's session; written by tenants.sessions. user: null until one has signed in.

    session_key: the SHA-256 of what the cookie has, as hexadecimal digits.
    """

    session_key = models.CharField("session key", max_length=64, primary_key=True)
    user = models.ForeignKey(User, null=True, on_delete=models.CASCADE, related_name="sessions")
    address = models.GenericIPAddressField(null=True)  # that signed in; null: a Unix socket
    agent = models.CharField(max_length=300, blank=True)  # the User-Agent that signed in
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()

    objects: ClassVar[BaseSessionManager[Any]] = BaseSessionManager()

    class Meta(AbstractBaseSession.Meta):
        abstract = False

    @classmethod
    def get_session_store_class(cls) -> type[Any]:
        from tenants.sessions import SessionStore  # it imports this module

        return SessionStore


class OneTimePassword(models.Model):
    """What an invited user, or one whose password was reset, sets a password by; see tenants.one_time.

    A row goes when the password is set or another one is issued. used_at: presented; sets one password until an hour
    later.
    """

    user = models.OneToOneField(User, on_delete=models.CASCADE, related_name="one_time_password")
    digest = models.CharField(max_length=64)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)


class AuthenticatorApp(models.Model):
    """An app on a person's device that makes codes from a secret which it shares with us; see tenants.two_factor.

    confirmed_at: null until one of its codes was right; only then it counts. last_step: the period, counted from 1970,
    of the newest code that was accepted; this code and older ones are refused.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="authenticator_apps")
    key_id = models.CharField(max_length=16)
    algorithm = models.CharField(max_length=16, db_default="A256GCM")  # tenants.keyring.ALGORITHMS
    sealed = models.BinaryField()
    last_step = models.BigIntegerField(default=0)
    created_at = models.DateTimeField()
    confirmed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["user"], condition=Q(confirmed_at__isnull=False), name="authenticator_app_once"
            ),
            models.UniqueConstraint(
                fields=["user"], condition=Q(confirmed_at__isnull=True), name="authenticator_app_begun_once"
            ),
        ]

    def __str__(self) -> str:
        return f"The authenticator app of {self.user.get_username()}"

    @property
    def bound_to(self) -> str:
        """What its encrypted secret is bound to."""
        return f"authenticator-app:{self.user_id}"


class RecoveryCode(models.Model):
    """A code that stands in for the authenticator app once. Only its SHA-256 is stored."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="recovery_codes")
    digest = models.CharField(max_length=64)
    used_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "digest"], name="recovery_code_once")]


class Passkey(models.Model):
    """A key on a person's device that signs our challenges; see tenants.passkeys. We keep its public half.

    host: of the address where it was added; browsers offer it there only. credential: its id and public key, as
    WebAuthn encodes both (attested credential data). sign_count: at its last use; 0 of passkeys that do not count.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="passkeys")
    name = models.CharField(max_length=80)
    host = models.CharField(max_length=253)
    credential_id = models.BinaryField(max_length=1023, unique=True)
    credential = models.BinaryField()
    transports = ArrayField(models.CharField(max_length=20), default=list)
    sign_count = models.BigIntegerField(default=0)
    created_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.name


class PasskeyChallenge(models.Model):
    """What a passkey has to sign, once: the row goes with the first answer, or is removed after it is too old."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="passkey_challenges")
    text = models.CharField(max_length=64)
    adds = models.BooleanField()  # to add a passkey, else to sign in with one
    created_at = models.DateTimeField()


class SecurityNotice(models.Model):
    """What happened to a user's account, for the user to see; see tenants.notices, and tenants.outbox for its mail.

    once: of what is noted once a day, the kind and the day; else "". to: the user's address when it happened; "": no
    mail. copy: one more mail of the same, to an address that the user had before. try_at: when the mail is due; null:
    it was sent, was given up, or there is none. problem: why the last try failed.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="security_notices")
    kind = models.CharField(max_length=40)
    details: models.JSONField[Any, Any] = models.JSONField(default=dict)
    address = models.GenericIPAddressField(null=True)
    at = models.DateTimeField(db_default=Now())
    once = models.CharField(max_length=60, blank=True, db_default="")
    to = models.CharField(max_length=254, blank=True, db_default="")
    copy = models.BooleanField(default=False)
    try_at = models.DateTimeField(null=True)
    tries = models.PositiveSmallIntegerField(default=0)
    sent_at = models.DateTimeField(null=True)
    problem = models.CharField(max_length=200, blank=True, db_default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["user", "once"], condition=~Q(once=""), name="security_notice_once"
            )
        ]
        indexes = [
            models.Index(F("user"), F("id").desc(), name="security_notice_by_user"),
            models.Index(fields=["try_at"], name="security_notice_due", condition=Q(try_at__isnull=False)),
        ]


class Tenant(models.Model):
    """A team. While suspended it submits and starts nothing; running jobs continue and may be halted."""

    class State(models.TextChoices):
        ACTIVE = "active"
        SUSPENDED = "suspended"

    slug = models.SlugField(max_length=40, unique=True)
    name = models.CharField(max_length=120)
    state = models.CharField(max_length=12, choices=State.choices, default=State.ACTIVE)
    priorities = ArrayField(models.CharField(max_length=12), default=default_priorities)
    jobs_limit = models.PositiveIntegerField(null=True, blank=True)  # live jobs at once; null: no limit
    jobs_used = models.PositiveIntegerField(default=0)
    user_jobs_limit = models.PositiveIntegerField(null=True, blank=True)  # of one user; null: no limit
    max_time_s = models.PositiveIntegerField(null=True, blank=True)  # longest time limit; null: none needed
    budget_gpu_hours = models.FloatField(null=True, blank=True)  # of a calendar month (UTC); null: no budget
    budget_is_hard = models.BooleanField(
        default=True, db_default=True
    )  # at its end GPU jobs stop; else it only warns
    storage_limit = models.BigIntegerField(null=True, blank=True)  # bytes; null: no limit
    # of the container images that its jobs may run, as tenants.images reads them; null: as the installation says
    image_patterns = ArrayField(models.CharField(max_length=300), null=True, blank=True)
    # the group of tenants with which it lends and borrows slots; "": none
    cohort = models.SlugField(max_length=40, blank=True, default="", db_default="")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(storage_limit__gte=0), name="storage_limit_not_negative"),
            models.CheckConstraint(condition=Q(budget_gpu_hours__gte=0), name="budget_not_negative"),
        ]

    def __str__(self) -> str:
        return self.slug


class Membership(models.Model):
    """A person's role in a tenant; the only source of truth for roles."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=12, choices=role_choices)
    created_at = models.DateTimeField(db_default=Now())
    accepted_at = models.DateTimeField(null=True)  # by the member; until then others do not see their address
    # at the identity provider, that gives it and takes it back at a sign-in; "": it was made or changed by hand
    group = models.CharField(max_length=200, blank=True, default="", db_default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "tenant"], name="membership_once")]

    @property
    def shown_email(self) -> str:
        """The address as other members see it."""
        return self.user.email if self.accepted_at else ""


class GroupMapping(models.Model):
    """The role in a tenant of who is in a group at the identity provider; see tenants.services.groups."""

    group = models.CharField(max_length=200)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="group_mappings")
    role = models.CharField(max_length=12, choices=role_choices)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["group", "tenant"], name="group_mapping_once")]


class Quota(models.Model):
    """Slots of one type allocated to a tenant, and those it holds now. No row means none.

    used changes by conditional UPDATE only; a trigger refuses growth above limit, and above what the tenant's cohort
    lends. borrowing_limit, lending_limit, user_limit, gang_limit: as in gpu_scheduler.model.QuotaUse; without a cohort
    the first two mean nothing.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="quotas")
    gpu_type = models.SlugField(max_length=40)
    limit = models.PositiveIntegerField(default=0)
    used = models.PositiveIntegerField(default=0)
    borrowing_limit = models.PositiveIntegerField(null=True, blank=True)  # null: all that others lend
    lending_limit = models.PositiveIntegerField(null=True, blank=True)  # null: the whole limit
    weight = models.PositiveIntegerField(default=1, db_default=1)
    user_limit = models.PositiveIntegerField(null=True, blank=True)  # held by one user's jobs; null: no limit
    gang_limit = models.PositiveIntegerField(null=True, blank=True)  # held by one job; null: no limit

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "gpu_type"], name="quota_once"),
            models.CheckConstraint(condition=Q(used__gte=0) & Q(limit__gte=0), name="quota_not_negative"),
            models.CheckConstraint(condition=Q(weight__gte=1), name="quota_weight_positive"),
        ]
        ordering = [F("gpu_type").asc()]


class QuotaChange(models.Model):
    """One limit set by one admin, with the reason given. Append-only.

    change_set groups what was applied together. terms: what changed of the TERMS of tenants.services.quotas, as
    {name: [before, after]}; where gpu_type is "", of its WHOLE_TERMS, and there is no limit.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="quota_changes")
    gpu_type = models.SlugField(max_length=40)
    old_limit = models.PositiveIntegerField()
    new_limit = models.PositiveIntegerField()
    used_then = models.PositiveIntegerField(
        null=True
    )  # slots held at the change; null for rows older than it
    reason = models.CharField(max_length=500)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    change_set = models.UUIDField(db_index=True)
    terms: models.JSONField[Any, Any] = models.JSONField(default=dict, db_default={})
    at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [models.Index(fields=["-at", "-id"], name="quota_change_by_time")]


class Project(models.Model):
    """A part of a tenant that divides its quota; jobs name it by its slug. weight: as in gpu_scheduler.model."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="projects")
    slug = models.SlugField(max_length=40)
    weight = models.PositiveIntegerField(default=1, db_default=1)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "slug"], name="project_once"),
            models.CheckConstraint(condition=Q(weight__gte=1), name="project_weight_positive"),
        ]
        ordering = [F("slug").asc()]

    def __str__(self) -> str:
        return self.slug


class ProjectShare(models.Model):
    """Of one slot type, what a project is guaranteed of its tenant's limit and the most that it holds; null: no limit.
    A type without a row has neither."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="shares")
    gpu_type = models.SlugField(max_length=40)
    guarantee = models.PositiveIntegerField(default=0)
    limit = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "gpu_type"], name="project_share_once")]
        ordering = [F("gpu_type").asc()]


class ProjectChange(models.Model):
    """One change of a project, with the reason given. Append-only. change_set groups what was applied together.

    terms: {name: [before, after]}; of a slot type guarantee and limit, of the project as a whole, where gpu_type is "",
    weight, which is null while there is no such project.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="project_changes")
    project = models.SlugField(max_length=40)
    gpu_type = models.SlugField(max_length=40, blank=True)
    terms: models.JSONField[Any, Any] = models.JSONField(default=dict)
    reason = models.CharField(max_length=500)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    change_set = models.UUIDField(db_index=True)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [models.Index(fields=["tenant", "-id"], name="project_change_by_time")]


class SavedView(models.Model):
    """Filters of a tenant's list of jobs under a name: its owner's, or everyone's in the tenant if shared.

    filters: name -> text, as the list's address has them, non-empty.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="views")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=40)
    filters: models.JSONField[Any, Any] = models.JSONField()
    shared = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        # Names of a user's own are kept apart by the service: one that another user stops sharing keeps its name.
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "name"], condition=Q(shared=True), name="shared_view_name_once"
            )
        ]
        ordering = [F("id").asc()]

    def __str__(self) -> str:
        return self.name


class Token(AbstractAuthToken):
    """An API token: knox keeps its hash; ours are its name, its tenant and the role it may not exceed."""

    name = models.CharField(max_length=80)
    tenant = models.ForeignKey(Tenant, null=True, blank=True, on_delete=models.CASCADE, related_name="tokens")
    role_ceiling = models.CharField(max_length=12, choices=role_choices, default=Role.MANAGER)
    last_used_at = models.DateTimeField(null=True, blank=True)


class Secret(models.Model):
    """A value that jobs may be granted by its name: of a tenant, or of one user. Encrypted; see tenants.keyring."""

    tenant = models.ForeignKey(
        Tenant, null=True, blank=True, on_delete=models.CASCADE, related_name="secrets"
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="secrets"
    )
    name = models.CharField(max_length=63)
    key_id = models.CharField(max_length=16)
    algorithm = models.CharField(max_length=16, db_default="A256GCM")  # tenants.keyring.ALGORITHMS
    sealed = models.BinaryField()
    updated_at = models.DateTimeField(db_default=Now())
    updated_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(tenant=None) ^ Q(user=None), name="secret_of_one"),
            models.UniqueConstraint(fields=["tenant", "name"], name="secret_once_in_tenant"),
            models.UniqueConstraint(fields=["user", "name"], name="secret_once_of_user"),
        ]

    def __str__(self) -> str:
        return f"Secret {self.name}"

    @property
    def bound_to(self) -> str:
        """What its encrypted value is bound to."""
        owner = f"tenant:{self.tenant_id}" if self.tenant_id else f"user:{self.user_id}"
        return f"{owner}:{self.name}"


class RetentionRule(models.Model):
    """How long, or how much of, one kind of a tenant's data is kept. No row: as the installation's default says.

    Both null: it is kept forever, whatever the default. Written by tenants.services.retention only.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="retention_rules")
    kind = models.CharField(max_length=12)  # tenants.retention.Kind
    days = models.PositiveIntegerField(null=True)
    bytes = models.BigIntegerField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "kind"], name="retention_rule_once")]


AUDIT_TERMS = search.terms("action", "target", tenant="tenant", person="actor")
"""What the audit log is searched by, as its index has it."""


class AuditEntry(models.Model):
    """Who did or read what in whose tenant. Append-only, like QuotaChange; tenant is null for the installation."""

    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.CASCADE, related_name="audit")
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    action = models.CharField(max_length=60)  # noun.verb: member.add, job.read
    target = models.CharField(max_length=200, blank=True)  # an id or a name
    reason = models.CharField(max_length=500, blank=True)
    details: models.JSONField[Any, Any] = models.JSONField(default=dict)
    request_id = models.CharField(max_length=64, blank=True)
    address = models.GenericIPAddressField(null=True)  # of the client; null: no request, or a Unix socket
    at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(F("tenant"), F("id").desc(), name="audit_by_tenant"),
            models.Index(fields=["actor", "action", "target", "at"], name="audit_repeat"),
            models.Index(fields=["-at", "-id"], name="audit_by_time"),
            GinIndex(AUDIT_TERMS, fastupdate=False, name="audit_search"),
            # A tenant's version is its newest edit, of which there are few among what its people read and did.
            models.Index(
                F("tenant"), F("id").desc(), name="audit_edits", condition=Q(action__startswith="tenant.")
            ),
            models.Index(
                F("tenant"), F("id").desc(), name="audit_images", condition=Q(action="images.change")
            ),
        ]


class AuditSeal(models.Model):
    """An entry's place in the chain of the audit log; see tenants.audit_chain. It stays when its entry is removed.

    digest: of the entry; hash: of n, the hash before and the digest. No relations, so that nothing else removes it.
    """

    n = models.BigIntegerField(primary_key=True)  # 1, 2, 3 …
    entry_id = models.BigIntegerField(unique=True)
    actor_id = models.BigIntegerField(null=True)
    digest = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)
    removed = models.BooleanField(default=False)  # by the audit log's retention rule
