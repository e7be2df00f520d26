"""Learner secrets: 256 bits per learner and attempt, of which the database holds only the SHA-256.

A secret may write while its attempt is live; log bytes until the stream is sealed, at most 24 hours longer. There
is no renewal and no clock but the database's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass

from django.conf import settings
from django.db import connection

PREFIX = "lsec_"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a secret allows: to write as this very learner. live: its attempt is the job's current one."""

    learner_id: int
    job_id: str
    tenant_id: int
    attempt: int
    rank: int
    live: bool


def derive(job_id: str, attempt: int, rank: int) -> tuple[str, str]:
    """The secret of one learner, always the same: a launch that is repeated by another worker hands out no second
    one, and none is ever stored."""
    message = f"learner:{job_id}:{attempt}:{rank}".encode()
    code = hmac.new(settings.SECRET_KEY.encode(), message, hashlib.sha256).digest()
    secret = PREFIX + base64.urlsafe_b64encode(code).rstrip(b"=").decode()
    return secret, digest(secret)


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


LIVE = "(a.closed_at IS NULL AND j.attempt = l.attempt)"
"""SQL: the learner's attempt is its job's live one. For jobs_learner l, jobs_job j and jobs_attempt a."""
ADMITTED = "(a.closed_at IS NULL OR (NOT l.log_sealed AND a.closed_at > now() - interval '24 hours'))"
"""SQL: the learner's secret is valid: until its attempt closes, and until its log is complete for a day longer."""
GRANT_SQL = f"""
SELECT l.id, l.job_id, l.tenant_id, l.attempt, l.rank, {LIVE}
FROM jobs_learner l
JOIN jobs_job j ON j.id = l.job_id
JOIN jobs_attempt a ON a.job_id = l.job_id AND a.n = l.attempt
WHERE l.secret_sha256 = %s AND {ADMITTED}
"""


def grant_of(secret: str) -> Grant | None:
    """Look up what a secret allows; None for an unknown one and for one whose time is up."""
    with connection.cursor() as cursor:
        cursor.execute(GRANT_SQL, [digest(secret)])
        row = cursor.fetchone()
    return Grant(*row) if row is not None else None


def bearer(header: str | None) -> str:
    """The secret in an Authorization header; empty if there is none."""
    kind, _, secret = (header or "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""
