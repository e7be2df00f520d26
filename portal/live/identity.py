"""Authentication and access checks of sockets. Runs in the hub's threads.

A browser sends its session cookie, so its Origin must be this site; a program sends a bearer token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from http.cookies import CookieError, SimpleCookie
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.http.request import validate_host
from django.utils.crypto import constant_time_compare

from jobs import tokens as learner_tokens
from jobs.models import Job, Learner
from jobs.selectors.jobs import jobs_visible_to
from jobs.selectors.redaction import needs_redaction
from jobs.selectors.requests import size_range
from portal.live.protocol import Channel, Topic
from tenants import access, audit, tokens
from tenants.models import Tenant, User

SEEN = ("state", "attempt", "learners", "resources")
"""Columns of a job that say which learners it has, or may have next."""


@dataclass(frozen=True)
class Credentials:
    """The credentials of a handshake. foreign: the cookie came with another site's Origin and is ignored.

    reason: why a platform admin reads a foreign tenant's data, as they stated it.
    """

    session_key: str = ""
    token: str = ""
    foreign: bool = False
    reason: str = ""


def credentials(headers: list[tuple[bytes, bytes]], query: bytes) -> Credentials:
    """Read the handshake's headers and query string. A bearer token outranks a cookie."""
    found = {name.decode("latin1").lower(): value.decode("latin1") for name, value in headers}
    asked = dict(parse_qsl(query.decode("latin-1")))
    reason = audit.reason_given(found.get(audit.REASON_HEADER.lower()), asked.get(audit.REASON_PARAMETER))
    scheme, _, token = found.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return Credentials(token=token.strip(), reason=reason)
    key = _cookie(found.get("cookie", ""), settings.SESSION_COOKIE_NAME)
    if key and not _is_ours(found.get("origin", ""), found.get("host", "")):
        return Credentials(foreign=True)
    return Credentials(session_key=key, reason=reason)


def who(known: Credentials) -> User | None:
    """The current user of the credentials; None if the session or the token has ended or the user is locked."""
    if known.token:
        return _by_token(known.token)
    if known.session_key:
        return _by_session(known.session_key)
    return None


def caller(path: str, headers: Sequence[tuple[bytes, bytes]]) -> User | learner_tokens.Grant | None:
    """Whose valid token, session or learner's secret a request's headers have, before anything else is judged."""
    found = {name.decode("latin1").lower(): value.decode("latin1") for name, value in headers}
    if secret := learner_tokens.bearer(found.get("authorization")):
        if path.startswith("/agent/"):
            return learner_tokens.grant_of(secret)
        return _by_token(secret)
    key = _cookie(found.get("cookie", ""), settings.SESSION_COOKIE_NAME)
    return _by_session(key) if key else None


class AccessLevel(Enum):
    """How much a viewer may see of a channel. GUEST: only this job is shared with them."""

    MEMBER = auto()
    GUEST = auto()


def access_level(user: User, channel: Channel, reason: str) -> AccessLevel | None:
    """The user's access to the channel; None for a channel that is missing or not visible.

    Subscriptions of platform admins to foreign jobs are recorded like their other reads.
    """
    if channel.name not in watchable(user, [channel]):
        return None
    if access.is_platform_admin(user) and (tenant := _tenant_of(channel)):
        action, target = ("job.read", channel.job_id) if channel.job_id else ("job.list", channel.tenant)
        audit.admin_read(user=user, tenant_id=tenant.pk, action=action, target=target, reason=reason)
    if channel.topic is Topic.JOB and (tenant := _tenant_of(channel)) and needs_redaction(user, tenant.pk):
        return AccessLevel.GUEST
    return AccessLevel.MEMBER


def _tenant_of(channel: Channel) -> Tenant | None:
    """The tenant whose jobs the channel shows."""
    if channel.job_id:
        return Tenant.objects.filter(jobs=channel.job_id).first()
    return Tenant.objects.filter(slug=channel.tenant).first() if channel.topic is Topic.JOBS else None


def watchable(user: User, channels: Collection[Channel]) -> set[str]:
    """The names of the channels that the user may watch; the number of queries does not depend on theirs."""
    job_ids = {channel.job_id for channel in channels if channel.job_id}
    seen = jobs_visible_to(user).filter(pk__in=job_ids).only(*SEEN) if job_ids else ()
    jobs = {job.pk: job for job in seen}
    logs = [channel for channel in channels if channel.topic is Topic.LOGS and channel.job_id in jobs]
    learners = _learners(logs) if logs else set()
    slugs = {channel.tenant for channel in channels if channel.tenant}
    tenants = {slug for slug in slugs if access.find_tenant(user, slug) is not None}

    def may(channel: Channel) -> bool:
        match channel.topic:
            case Topic.CLUSTER:
                return True
            case Topic.JOBS | Topic.QUOTAS:
                return channel.tenant in tenants
            case Topic.LOGS:
                return (channel.job_id, channel.attempt, channel.rank) in learners or _may_come(
                    channel, jobs.get(channel.job_id)
                )
            case _:
                return channel.job_id in jobs

    return {channel.name for channel in channels if may(channel)}


def _may_come(channel: Channel, job: Job | None) -> bool:
    """Whether the log is of the job's next attempt, so that a program can watch from the first line on."""
    if job is None or job.is_final or channel.attempt != job.attempt + 1:
        return False
    try:
        return channel.rank < size_range(job).max
    except (TypeError, ValueError):
        return False  # of a newer version: who may watch other channels does not depend on it


def _learners(logs: Collection[Channel]) -> set[tuple[str, int, int]]:
    """The learners of these logs that exist."""
    asked = {field: {getattr(channel, field) for channel in logs} for field in ("job_id", "attempt", "rank")}
    found = Learner.objects.filter(
        job_id__in=asked["job_id"], attempt__in=asked["attempt"], rank__in=asked["rank"]
    )
    return set(found.values_list("job_id", "attempt", "rank"))


def _by_token(secret: str) -> User | None:
    return tokens.identify(secret)


def _by_session(key: str) -> User | None:
    session: Any = import_module(settings.SESSION_ENGINE).SessionStore(key)
    session.in_use = False  # an open page connects and is checked whether or not anyone is there
    if session.get(BACKEND_SESSION_KEY) not in settings.AUTHENTICATION_BACKENDS:
        return None
    user = User.objects.filter(pk=session.get(SESSION_KEY), is_active=True, is_service_account=False).first()
    if user is None:
        return None
    expected = [user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()]
    given = session.get(HASH_SESSION_KEY) or ""
    return user if any(constant_time_compare(given, one) for one in expected) else None


def _cookie(header: str, name: str) -> str:
    try:
        morsel = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def _is_ours(origin: str, host: str) -> bool:
    if origin in settings.CSRF_TRUSTED_ORIGINS:
        return True
    netloc = urlsplit(origin).netloc if origin else ""
    return bool(netloc) and netloc == host and validate_host(netloc.rsplit(":", 1)[0], settings.ALLOWED_HOSTS)
