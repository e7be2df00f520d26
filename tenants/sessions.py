"""The store of browser sessions (SESSION_ENGINE): rows that know their user, so that sessions can be listed and ended.

A row also has the address and the browser that signed in, and when it was last used. Its key is the SHA-256 of the
session's, which the cookie alone has: who reads the database, or a copy of it, cannot sign in by it.
"""

from __future__ import annotations

import hashlib
import time
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.base import SessionBase, UpdateError
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.db import transaction
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils import timezone

from tenants.audit import source_address
from tenants.models import Session

SEEN_EVERY = timedelta(minutes=1)  # how fresh seen_at is kept
SIGNED_IN = "signed_in"
"""Key of what the session keeps about its beginning: {"at": ISO time, "address", "agent"}."""


PROVED = "proved"
"""Key of what the session's user has shown at the sign-in: {"by": the first factor, "second": the second, or ""}."""
PASSWORD, SINGLE_SIGN_ON, ONE_TIME = "password", "single sign-on", "one-time password"
"""As what is shown first."""
PROVED_AT = "proved_at"
"""Key of when its user last showed all of their factors, in seconds since 1970; None: not known to be at any time."""
MOVED = "moved"
"""Key of a row that is left under an earlier key of a session."""
MOVED_FOR = timedelta(minutes=1)
FRESH = timedelta(minutes=10)
"""For how long after that the user is taken to be still there."""


class SessionStore(DatabaseStore):
    """Django's store in the database, with our rows.

    in_use: whether what reads the session now is an act of its user. What an open page does on its own is none, so that
    a forgotten tab does not keep its session.
    """

    in_use = True

    def decode(self, session_data: bytes | str) -> dict[str, Any]:
        """Nothing of a session whose user has shown less than the installation asks for now.

        Pages, REST and sockets all read sessions here, so nothing lets such a session in.
        """
        data: dict[str, Any] = super().decode(session_data)
        return {} if SESSION_KEY in data and not _shown_enough(data.get(PROVED, {})) else data

    @transaction.atomic
    def cycle_key(self) -> None:
        """Another key for the session. Of a user who is signed in, the earlier one opens an empty session for a minute.

        A request of another tab may be under way with it. An answer about a session that is not there takes the cookie
        from the browser, which by then has the new one, and drafts with it.
        """
        before = self.session_key
        if before is None or SESSION_KEY not in self:
            self.pop(
                MOVED, None
            )  # who signs in with the earlier key has lost the answer that had the later one
            super().cycle_key()
            return
        self.create()
        moved = self.encode({MOVED: True})
        Session.objects.filter(pk=stored_key(before)).update(
            user=None, address=None, agent="", session_data=moved, expire_date=timezone.now() + MOVED_FOR
        )

    def save(self, must_create: bool = False) -> None:
        """Raises UpdateError where the session was ended, or has another key, since it was read.

        What is begun with an earlier key, such as a sign-in by a provider, is a session of its own.
        """
        if not must_create and self.get(MOVED):
            del self[MOVED]
            self.create()
            return
        with transaction.atomic():
            if not must_create and self.session_key is not None:
                row = Session.objects.select_for_update().filter(pk=row_key(self)).first()
                if row is not None and MOVED in self.decode(row.session_data):
                    raise UpdateError
            super().save(must_create)

    def exists(self, session_key: str) -> bool:
        return Session.objects.filter(pk=stored_key(session_key)).exists()

    def delete(self, session_key: str | None = None) -> None:
        key = self.session_key if session_key is None else session_key
        if key is not None:
            Session.objects.filter(pk=stored_key(key)).delete()

    @classmethod
    def get_model_class(cls) -> type[Session]:
        return Session

    def create_model_instance(self, data: dict[str, Any]) -> Any:
        row: Any = super().create_model_instance(data)
        row.session_key = stored_key(row.session_key)
        row.user_id = int(data[SESSION_KEY]) if SESSION_KEY in data else None
        began = data.get(SIGNED_IN, {})
        row.started_at = datetime.fromisoformat(began["at"]) if began else timezone.now()
        row.address, row.agent = began.get("address"), began.get("agent", "")
        row.seen_at = timezone.now()
        if (
            row.user_id is not None
        ):  # a change of what it holds, such as a confirmed password, does not prolong it
            row.expire_date = min(row.expire_date, row.started_at + _lifetime())
        return row

    def _get_session_from_db(self) -> Any:
        row = Session.objects.filter(pk=row_key(self), expire_date__gt=timezone.now()).first()
        if row is None:
            self._session_key = None
            return None
        if row.user_id is not None and not self._counts(row):
            row.delete()  # so that it does not come back to life should less be required again
            self._session_key = None
            return None
        if self.in_use and timezone.now() - row.seen_at > SEEN_EVERY:
            Session.objects.filter(pk=row.pk).update(seen_at=Now())
        return row

    def _counts(self, row: Session) -> bool:
        """A change of what it holds, such as a confirmed password, prolongs its cookie, and not the session."""
        now = timezone.now()
        in_time = now - row.started_at <= _lifetime() and now - row.seen_at <= longest_idle()
        return in_time and bool(self.decode(row.session_data))


def stored_key(key: str) -> str:
    """The key of the row of the session with this key."""
    return hashlib.sha256(key.encode()).hexdigest()


def row_key(session: SessionBase) -> str:
    """The key of the session's row; empty before it has one."""
    return "" if session.session_key is None else stored_key(session.session_key)


def longest_idle() -> timedelta:
    """For how long a session may go unused before it ends."""
    return timedelta(days=settings.LUTHIER_SESSION_IDLE_DAYS)


def _lifetime() -> timedelta:
    return timedelta(seconds=settings.SESSION_COOKIE_AGE)


def prove(request: HttpRequest, *, second: str, by: str | None = None) -> None:
    """Note in the session what its user has shown. by: None leaves it."""
    before: dict[str, Any] = request.session.get(PROVED, {})
    request.session[PROVED] = {"by": before.get("by", PASSWORD) if by is None else by, "second": second}


def is_fresh(request: HttpRequest) -> bool:
    """Whether the user of this session has shown all of their factors a moment ago: at the sign-in, or again."""
    at = request.session.get(PROVED_AT)
    return at is not None and time.time() - at < FRESH.total_seconds()


def second_factor_due(by: str) -> bool:
    """Whether who has one shows it, after a first factor of this kind."""
    return by != SINGLE_SIGN_ON or bool(settings.LUTHIER_TWO_FACTOR_AFTER_SSO)


def _shown_enough(proved: dict[str, str]) -> bool:
    if not settings.LUTHIER_PASSWORD_SIGN_IN and proved.get("by", PASSWORD) == PASSWORD:
        return False
    if not settings.LUTHIER_TWO_FACTOR_REQUIRED or proved.get("second"):
        return True
    return "by" in proved and not second_factor_due(proved["by"])


def note_beginning(sender: object, request: HttpRequest, **more: object) -> None:
    """Receiver of user_logged_in: keep in the session when, from where and with which browser it began,
    and that its user has shown all that is due."""
    request.session[PROVED_AT] = time.time()
    request.session[SIGNED_IN] = {
        "at": timezone.now().isoformat(),
        "address": source_address.get() or request.META.get("REMOTE_ADDR") or None,
        "agent": request.META.get("HTTP_USER_AGENT", "")[: Session._meta.get_field("agent").max_length],
    }
