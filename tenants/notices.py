"""Security notices: what happened to a user's account, for its user: on their profile and, with EMAIL_URL, by mail.

They are made from entries of the audit log, in the same transaction, so that no change that is recorded can be without
its notice. docs/adr/0097-security-notices.md has the reasons.

An attacker who has an account, or guesses at one, decides how often things happen: what can happen without the user is
noted once a day, each kind has a number of mails of its own, and its rows hide and remove none of another kind.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import connection
from django.db.models import F, Window
from django.db.models.functions import Now, RowNumber
from django.utils import timezone

from tenants.models import AuditEntry, SecurityNotice, User

FAILURES = 5
"""Failed sign-ins under a user's name within WATCHED of which the user is notified."""
WATCH_EVERY_S = 30.0
WRONG_CODES = 3
"""The same of wrong codes, before which the right password was given."""
GUESSES = 3
"""Failures within WATCHED after which a sign-in that works is noted."""
WATCHED = timedelta(hours=1)
REMEMBERED = timedelta(days=90)
"""For how long a network and a browser are known from an earlier sign-in."""
PLACES_READ = 1000
MAILS_A_DAY = 5
"""Of one kind to one user."""
MOVED = timedelta(days=7)
"""For how long notices also go to the address that the user had before."""
KEPT, KEPT_FOR = 50, timedelta(days=90)
"""Rows per user and kind, and their age."""
SHOWN = 30
"""More than there are kinds: the newest of each is among them."""
AFTER_THE_PASSWORD = ("code", "passkey")
"""What a failed sign-in was refused for, of who had given the right password."""

SIGN_IN, FAILURE = "login.success", "login.failure"
AFTER_FAILURES = "login.after_failures"
FORGET = """
DELETE FROM tenants_securitynotice WHERE at < clock_timestamp() - make_interval(days => %(days)s) OR id IN (
    SELECT id FROM (SELECT id, at, "to", row_number() OVER (PARTITION BY user_id, kind ORDER BY id DESC) AS n
                    FROM tenants_securitynotice) numbered
    WHERE n > %(kept)s AND ("to" = '' OR at < clock_timestamp() - make_interval(days => %(moved)s)))
"""
"""Rows with mails, which are few, stay for MOVED: some are not sent yet, they are counted, and they say where mail went
before."""


GUESSED = """
SELECT max(entry.id) FROM tenants_auditentry entry
JOIN tenants_user person ON person.username = entry.target AND person.is_active AND NOT person.is_service_account
WHERE entry.action = %(action)s AND entry.actor_id IS NULL AND entry.at > statement_timestamp() - %(watched)s
  AND coalesce(entry.details->>'by', '') <> ALL(%(after)s)
  AND NOT EXISTS (SELECT FROM tenants_securitynotice AS noted
                  WHERE user_id = person.id AND (once = %(once)s OR kind = %(kind)s AND noted.at >= entry.at))
GROUP BY person.id HAVING count(*) >= %(failures)s LIMIT %(most)s
"""
"""Failures that no notice was made of, of users without one today. Not by clock_timestamp: no index is searched by what
changes within a statement, and the failures of years would be read."""
GUESSED_READ = 1000
"""Users of one run; of a flood of more, the next runs find the others."""


@dataclass(frozen=True)
class Kind:
    """title: the subject of the mail. own, admins: the sentence, if the user did it, and if a platform admin did.

    {name} in a sentence is what the user calls the thing. Mails have the title instead: they repeat nothing that was
    chosen by who may have taken the account over.
    """

    title: str
    own: str
    admins: str = ""


KINDS = {
    "admin.granted": Kind(
        "You were made a platform admin",
        "You became a platform admin.",
        "A platform admin made you a platform admin.",
    ),
    "admin.revoked": Kind(
        "You are no longer a platform admin",
        "You are no longer a platform admin.",
        "A platform admin took your rights as a platform admin away.",
    ),
    "email.change": Kind(
        "Your e-mail address was changed",
        "Your e-mail address was changed.",
        "A platform admin changed your e-mail address.",
    ),
    AFTER_FAILURES: Kind(
        "A sign-in worked after failed attempts",
        "A sign-in to your account worked after failed attempts.",
    ),
    "login.codes": Kind(
        "Wrong codes were entered after your password",
        "Your password was entered correctly, and then wrong codes.",
    ),
    "login.copied_passkey": Kind(
        "A copy of your passkey was refused",
        "A passkey that looks like a copy of yours was refused.",
    ),
    "login.failures": Kind(
        "Several attempts to sign in to your account failed",
        f"{FAILURES} or more attempts to sign in to your account failed within an hour.",
    ),
    "login.new_place": Kind(
        "New sign-in to your account", "A sign-in from a network or browser not seen in 90 days."
    ),
    "login.recovery_code": Kind(
        "A recovery code was used", "A recovery code was used to sign in to your account."
    ),
    "passkey.add": Kind("A passkey was added", "The passkey “{name}” was added."),
    "passkey.remove": Kind("A passkey was removed", "The passkey “{name}” was removed."),
    "password.change": Kind("Your password was changed", "Your password was changed."),
    "password.guesses": Kind(
        "Wrong passwords were given in your session",
        f"{FAILURES} or more wrong passwords or codes were given from a session or API token of yours within an hour.",
    ),
    "password.set": Kind("A new password was set", "A password was set with a one-time password."),
    "token.create": Kind("An API token was created", "The API token “{name}” was created."),
    "token.revoke": Kind("An API token was revoked", "The API token “{name}” was revoked."),
    "token.revoke_all": Kind(
        "Your API tokens were revoked",
        "All of your API tokens were revoked.",
        "A platform admin revoked all of your API tokens.",
    ),
    "two_factor.codes": Kind("New recovery codes were made", "New recovery codes were made."),
    "two_factor.disable": Kind(
        "Two-factor authentication was turned off", "Two-factor authentication was turned off."
    ),
    "two_factor.enable": Kind(
        "Two-factor authentication was turned on", "Two-factor authentication was turned on."
    ),
    "two_factor.remove": Kind("Your authenticator app was removed", "Your authenticator app was removed."),
    "two_factor.reset": Kind(
        "Two-factor authentication was reset",
        "Your two-factor authentication was reset.",
        "A platform admin removed your two-factor authentication.",
    ),
    "user.link": Kind(
        "An identity was linked to your account",
        "An identity for single sign-on was linked to your account.",
        "A platform admin linked an identity for single sign-on to your account.",
    ),
    "user.reset": Kind(
        "Your password was reset",
        "Your password was replaced by a one-time password.",
        "A platform admin replaced your password by a one-time password.",
    ),
    "user.unlink": Kind(
        "An identity was unlinked from your account",
        "An identity for single sign-on was unlinked from your account.",
        "A platform admin unlinked an identity for single sign-on from your account.",
    ),
}
ONCE_A_DAY = frozenset({"login.codes", "login.failures", "password.guesses"})
UNKNOWN = Kind("Something about your account changed", "Something about your account changed.")


def note(entry: AuditEntry) -> None:
    """Make the notices of this entry, within the caller's transaction. Of most entries there are none.

    None for service accounts, which have neither mails nor a profile, and for disabled users, who have no way in.
    """
    found_by = FINDERS.get(entry.action)
    if found_by is None or not entry.target or _is_of_a_stranger(entry):
        return
    if user := _user_of(entry):
        for kind in found_by(entry, user):
            _write(user, kind, entry)


def watch() -> int:
    """Note failed sign-ins of the last hour that were many under one name; of how many users.

    A task of its own: who guesses could measure what a request does for names that exist only.
    """
    kind = "login.failures"
    bounds: dict[str, Any] = {
        "action": FAILURE,
        "kind": kind,
        "watched": WATCHED,
        "after": list(AFTER_THE_PASSWORD),
        "failures": FAILURES,
        "once": _today(kind),
        "most": GUESSED_READ,
    }
    with connection.cursor() as cursor:
        cursor.execute(GUESSED, bounds)
        newest = [row[0] for row in cursor.fetchall()]
    for entry in AuditEntry.objects.filter(pk__in=newest):
        if user := _user_of(entry):
            _write(user, kind, entry)
    return len(newest)


def _user_of(entry: AuditEntry) -> User | None:
    return User.objects.filter(username=entry.target, is_active=True, is_service_account=False).first()


def _is_of_a_stranger(entry: AuditEntry) -> bool:
    """Whether the entry is a sign-in that failed before anything was right: `watch` finds these."""
    return entry.action == FAILURE and entry.details.get("by") not in AFTER_THE_PASSWORD


def recent(user: User, *, most: int = SHOWN) -> list[SecurityNotice]:
    """What happened, newest first. If there is more, the newest of each kind, then the second of each, and so on: what
    can be repeated at will hides nothing else."""
    nth = Window(RowNumber(), partition_by=F("kind"), order_by=F("pk").desc())
    rows = user.security_notices.filter(copy=False).annotate(nth=nth).order_by("nth", "-pk")[:most]
    return sorted(rows, key=lambda row: -row.pk)


def sentence(notice: SecurityNotice) -> str:
    """What happened, for the user's own profile."""
    kind = KINDS.get(notice.kind, UNKNOWN)
    text = kind.admins if kind.admins and notice.details.get("by_admin") else kind.own
    name = str(notice.details.get("name", ""))
    return text.replace("“{name}” ", f"“{name}” " if name else "")


def forget() -> int:
    """Remove old rows, and of each user and kind all but the newest; how many."""
    with connection.cursor() as cursor:
        cursor.execute(FORGET, {"days": KEPT_FOR.days, "kept": KEPT, "moved": MOVED.days})
        return int(cursor.rowcount)


def _as_it_is(entry: AuditEntry, user: User) -> list[str]:
    return [entry.action]


def _of_change(entry: AuditEntry, user: User) -> list[str]:
    found = []
    if "email" in entry.details:
        found.append("email.change")
    if "is_platform_admin" in entry.details:
        found.append("admin.granted" if entry.details["is_platform_admin"]["to"] else "admin.revoked")
    return found


def _of_sessions(entry: AuditEntry, user: User) -> list[str]:
    return ["token.revoke_all"] if entry.details.get("tokens") else []


def _of_failure(entry: AuditEntry, user: User) -> list[str]:
    """In a flood, what is noted already costs one query."""
    if entry.details.get("copied"):
        return ["login.copied_passkey"]
    if _is_noted(user, _once("login.codes", entry)):
        return []
    wrong = _recent(entry, FAILURE).filter(details__by__in=AFTER_THE_PASSWORD)
    return ["login.codes"] if _count(wrong, WRONG_CODES) >= WRONG_CODES else []


def _of_wrong_password(entry: AuditEntry, user: User) -> list[str]:
    if _is_noted(user, _once("password.guesses", entry)):
        return []
    given = sum(_count(_recent(entry, f"{what}.failure"), FAILURES) for what in ("password", "code"))
    return ["password.guesses"] if given >= FAILURES else []


def _of_sign_in(entry: AuditEntry, user: User) -> list[str]:
    found = []
    if entry.details.get("second_factor") == "recovery code":
        found.append("login.recovery_code")
    if _count(_recent(entry, FAILURE, actor=None), GUESSES) >= GUESSES:
        found.append(AFTER_FAILURES)
    if _from_a_new_place(entry):
        found.append("login.new_place")
    return found


def _from_a_new_place(entry: AuditEntry) -> bool:
    """Whether network or browser were seen in no earlier sign-in; of the first one there is nothing to differ from."""
    before = AuditEntry.objects.filter(
        actor=entry.actor_id, action=SIGN_IN, target=entry.target, at__gt=Now() - REMEMBERED, pk__lt=entry.pk
    )
    places = set(before.values_list("address", "details__browser").distinct()[:PLACES_READ])
    if not places:
        return False
    networks, browsers = (set(one) for one in zip(*places, strict=True))
    if _network(entry.address) not in {_network(each) for each in networks}:
        return True
    browsers.discard(None)  # of entries of earlier versions
    return bool(browsers) and entry.details.get("browser") not in browsers


def _network(address: str | None) -> str | None:
    """A person's address changes within it: /24, and of IPv6 the /48 of a site."""
    if address is None:
        return None
    parsed = ipaddress.ip_address(address)
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return str(ipaddress.ip_network((parsed, 24 if parsed.version == 4 else 48), strict=False))


def _recent(entry: AuditEntry, action: str, **more: Any) -> Any:
    by = {"actor": entry.actor_id} | more
    return AuditEntry.objects.filter(action=action, target=entry.target, at__gt=Now() - WATCHED, **by)


def _count(rows: Any, most: int) -> int:
    return int(rows.values("pk")[:most].count())


def _once(kind: str, entry: AuditEntry) -> str:
    """What this kind is noted once for: the day, of sign-ins the network, too; else ""."""
    if kind == AFTER_FAILURES:
        return f"{_today(kind)}:{_network(entry.address)}"
    return _today(kind) if kind in ONCE_A_DAY else ""


def _today(kind: str) -> str:
    return f"{kind}:{timezone.now():%Y-%m-%d}"


def _is_noted(user: User, once: str) -> bool:
    return user.security_notices.filter(once=once).exists()


FINDERS: dict[str, Callable[[AuditEntry, User], list[str]]] = {
    **dict.fromkeys(
        (
            "passkey.add",
            "passkey.remove",
            "password.change",
            "password.set",
            "token.create",
            "token.revoke",
            "two_factor.codes",
            "two_factor.disable",
            "two_factor.enable",
            "two_factor.remove",
            "two_factor.reset",
            "user.link",
            "user.reset",
            "user.unlink",
        ),
        _as_it_is,
    ),
    "code.failure": _of_wrong_password,
    FAILURE: _of_failure,
    SIGN_IN: _of_sign_in,
    "password.failure": _of_wrong_password,
    "session.end": _of_sessions,
    "user.change": _of_change,
}
"""What is looked at, by the entry's action."""


def _write(user: User, kind: str, entry: AuditEntry) -> None:
    details: dict[str, Any] = {}
    if name := entry.details.get("name") or entry.details.get("passkey"):
        details["name"] = str(name)
    if entry.action == SIGN_IN:
        details["browser"] = str(entry.details.get("browser", ""))
    by_admin = entry.actor_id != user.pk and kind not in ONCE_A_DAY and not kind.startswith("login.")
    if by_admin:
        details["by_admin"] = True
    once = _once(kind, entry)
    if once and _is_noted(user, once):
        return
    addresses = _addresses(user, kind, entry) if _may_mail(user, kind) else []
    first, *others = addresses or [""]
    place = None if by_admin else entry.address  # where admins are is not the user's to know

    def row(to: str, **more: Any) -> SecurityNotice:
        due = Now() if to else None
        return SecurityNotice(user=user, kind=kind, details=details, address=place, to=to, try_at=due, **more)

    # Of two at once that are noted once, one is kept.
    SecurityNotice.objects.bulk_create([row(first, once=once)], ignore_conflicts=bool(once))
    SecurityNotice.objects.bulk_create([row(each, copy=True) for each in others])


def _may_mail(user: User, kind: str) -> bool:
    if not settings.LUTHIER_SENDS_MAIL:
        return False
    sent = user.security_notices.filter(kind=kind, copy=False, at__gt=Now() - timedelta(days=1))
    return sent.exclude(to="").count() < MAILS_A_DAY


def _addresses(user: User, kind: str, entry: AuditEntry) -> list[str]:
    """The user's address; before a change that of before, and for MOVED after it both."""
    present = str(entry.details["email"]["from"] or user.email) if kind == "email.change" else user.email
    moved = user.security_notices.filter(kind="email.change", at__gt=Now() - MOVED).exclude(to="")
    found = dict.fromkeys([present, *moved.order_by("-pk").values_list("to", flat=True)[:MAILS_A_DAY]])
    return [each for each in found if _is_address(each)]


def _is_address(text: str) -> bool:
    try:
        validate_email(text)
    except ValidationError:
        return False
    return text.isprintable()
