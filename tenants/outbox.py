"""Sends the mails of security notices, outside of any request and transaction.

Any number of workers may send: each mail is claimed by one for longer than it can take. Of a worker that ends between
the send and its note, another one sends the mail again, with the same Message-ID, by which mail programs show it once.
A mail server that is down or does not go on costs one attempt per pause, which grows; nothing is lost before STALE.
"""

from __future__ import annotations

import hashlib
import logging
import smtplib
import time
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.mail import EmailMessage, get_connection
from django.core.mail.backends.base import BaseEmailBackend
from django.db import connection as database
from django.db.models.functions import Now

from tenants import notices, smtp
from tenants.models import SecurityNotice
from tenants.pauses import pause_after

logger = logging.getLogger(__name__)

EVERY_S = 5.0
BATCH_S = 10.0
"""After this long no further mail is begun; the next run continues."""
RUN_S = BATCH_S + smtp.LONGEST_S
"""How long a run may take: its last mail may be begun just before BATCH_S is over."""
STALE = timedelta(days=3)
"""What could not be sent until then is no news any more; it is on the profile."""

# The first claim is for a minute, which is longer than a connection may take (tenants.smtp), then twice as long each.
CLAIM = """
UPDATE tenants_securitynotice SET tries = tries + 1,
    try_at = clock_timestamp() + make_interval(secs => least(60 * power(2, least(tries, 6)), 3600))
WHERE id = (SELECT id FROM tenants_securitynotice WHERE try_at <= clock_timestamp()
            ORDER BY try_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id
"""
FAULTS = (OSError, smtplib.SMTPException)
"""Of the network and of the server; ssl.SSLError and timeouts are OSErrors."""

Result = dict[str, Any]


def send_due(before: Result) -> Result:
    """Send what is due. before: the last result.

    failures: runs in a row that failed. problem: what the server said at last, of one mail or all; empty: it took them.
    next_in_s: when to run again; None: as usual.
    """
    result: Result = {"sent": 0, "failures": 0, "next_in_s": None, "problem": ""}
    if not settings.LUTHIER_SENDS_MAIL:
        return result
    _give_up_stale()
    if not SecurityNotice.objects.filter(try_at__lte=Now()).exists():
        return result | {name: before[name] for name in ("failures", "problem") if name in before}
    mailer = get_connection()
    try:
        mailer.open()
        result["sent"], result["problem"], more = _send_all(mailer)
        result["next_in_s"] = 0.0 if more else None
    except FAULTS as fault:
        failures = int(before.get("failures", 0)) + 1
        pause_s = pause_after(failures)
        result |= {"failures": failures, "next_in_s": pause_s, "problem": _text(fault)}
        logger.warning("security notices were not mailed", extra={"error": _text(fault), "pause_s": pause_s})
    finally:
        _close(mailer)
    return result


def claim() -> SecurityNotice | None:
    """A mail that is due, which no other worker sends for a minute or more."""
    with database.cursor() as cursor:
        cursor.execute(CLAIM)
        found = cursor.fetchone()
    return SecurityNotice.objects.select_related("user").get(pk=found[0]) if found else None


def waiting() -> tuple[int, float]:
    """How many mails wait to be sent, and the age of the oldest in seconds."""
    with database.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(at)), 0)"
            " FROM tenants_securitynotice WHERE try_at IS NOT NULL"
        )
        count, age_s = cursor.fetchone()
    return int(count), float(age_s)


def message(notice: SecurityNotice) -> EmailMessage:
    """Plain text, without what users or attackers choose but for the user's own name; no link acts on anything."""
    kind = notices.KINDS.get(notice.kind, notices.UNKNOWN)
    name = "".join(letter if letter.isprintable() else " " for letter in notice.user.get_username())
    profile = f"{settings.LUTHIER_PUBLIC_URL.rstrip('/')}/me"
    by_admin = bool(notice.details.get("by_admin"))
    lines = [
        f"{kind.title}.",
        "",
        f"Account: {name}",
        f"Time: {notice.at:%Y-%m-%d %H:%M} UTC",
        "By: a platform admin" if by_admin else f"From: {notice.address or 'an address that is not known'}",
        f"Platform: {settings.LUTHIER_PUBLIC_URL}",
        "",
        "If this was you, or you know of it, you need not do anything.",
        "If not, change your password, end all other sessions and revoke your API tokens on your profile, and report",
        "it to a platform admin:",
        profile,
        "",
        "This is an automatic message. Luthier never asks for your password by mail.",
    ]
    host = urlsplit(settings.LUTHIER_PUBLIC_URL).hostname or "localhost"
    unique = hashlib.sha256(f"{settings.LUTHIER_PUBLIC_URL} {notice.pk} {notice.at}".encode()).hexdigest()[
        :32
    ]
    return EmailMessage(
        subject=f"Luthier: {kind.title}",
        body="\n".join(lines),
        to=[notice.to],
        headers={
            "Message-ID": f"<notice-{unique}@{host}>",
            "Auto-Submitted": "auto-generated",
            "X-Auto-Response-Suppress": "All",
        },
    )


def _send_all(mailer: BaseEmailBackend) -> tuple[int, str, bool]:
    """How many were sent, why the last that was not sent was not, and whether more may be due."""
    sent, problem, until = 0, "", time.monotonic() + BATCH_S
    while time.monotonic() < until:
        notice = claim()
        if notice is None:
            return sent, problem, False
        refusal = _send(mailer, notice)
        sent, problem = sent + (not refusal), refusal or problem
    return sent, problem, True


def _send(mailer: BaseEmailBackend, notice: SecurityNotice) -> str:
    """Why it was not sent; empty: it was. Raises one of FAULTS if the connection, or the sender, is of no use for
    others either.

    What the server refuses for good is tried again as well: it says so, too, if it does not know this installation.
    Only a mail that cannot be written (ValueError: its address or a header) is given up at once.
    """
    row = SecurityNotice.objects.filter(pk=notice.pk)
    try:
        mail = message(notice)
        mail.connection = mailer
        mail.send()
    except (ValueError, smtplib.SMTPRecipientsRefused, smtplib.SMTPDataError) as error:
        text = _text(error)
        logger.warning("a security notice cannot be mailed", extra={"notice": notice.pk, "error": text})
        row.update(problem=text)
        if isinstance(error, ValueError):
            row.update(try_at=None)
        return text
    except FAULTS as fault:
        row.update(problem=_text(fault))
        raise
    row.update(try_at=None, sent_at=Now(), problem="")
    return ""


def _give_up_stale() -> None:
    stale = SecurityNotice.objects.filter(try_at__isnull=False, at__lte=Now() - STALE)
    stale.update(try_at=None, problem=f"not sent within {STALE.days} days")


def _close(mailer: BaseEmailBackend) -> None:
    try:
        mailer.close()
    except FAULTS:
        pass  # it is gone anyway


def _text(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    return "".join(letter if letter.isprintable() else " " for letter in text)[:200]
