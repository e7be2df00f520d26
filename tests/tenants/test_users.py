"""Users by platform admins: one-time passwords work once, the last admin stays, and everything is in the audit log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.contrib.sessions.backends.base import UpdateError
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.utils import timezone

from tenants import one_time
from tenants.errors import AdminOnly, FieldsInvalid, LastAdmin, NameTaken, NotFound, VersionChanged
from tenants.models import AuditEntry, OneTimePassword, Token, User
from tenants.services import sessions, users
from tenants.sessions import row_key
from tests import factories
from tests.meanwhile import Meanwhile

pytestmark = pytest.mark.django_db
NEW = "a brand new passphrase"


@pytest.fixture
def admin() -> User:
    return factories.user("admin", is_superuser=True, password=factories.PASSWORD)


def _redeemed(username: str, secret: str) -> OneTimePassword:
    found = one_time.redeem(username, secret)
    assert found is not None
    return found


def test_a_new_user_is_invited_and_sets_a_password(admin: User) -> None:
    made = users.user_create(user=admin, username="erin", email="erin@example.org")
    assert users.state_of(made.user) == "invited"
    assert not made.user.has_usable_password()
    assert made.secret not in str(OneTimePassword.objects.values())
    redeemed = _redeemed("erin", made.secret)
    assert redeemed.user == made.user
    assert one_time.password_set(redeemed.pk, NEW) == made.user
    erin = users.user_get(user=admin, username="erin")
    assert users.state_of(erin) == "active"
    assert authenticate(None, username="erin", password=NEW) == erin
    entries = AuditEntry.objects.order_by("pk").values_list("action", "actor__username", "target")
    assert list(entries) == [("user.create", "admin", "erin"), ("password.set", "erin", "erin")]


def test_a_one_time_password_works_once_and_expires(admin: User) -> None:
    made = users.user_create(user=admin, username="erin")
    assert one_time.redeem("admin", made.secret) is None
    assert one_time.redeem("erin", made.secret + "x") is None
    assert one_time.redeem("erin", made.secret) is not None
    assert one_time.redeem("erin", made.secret) is None
    late = users.user_reset(user=admin, username="erin")
    OneTimePassword.objects.update(expires_at=timezone.now())
    assert one_time.redeem("erin", late.secret) is None
    assert users.state_of(users.user_get(user=admin, username="erin")) == "expired"


def test_a_newer_one_replaces_it_also_after_it_was_presented(admin: User) -> None:
    first = users.user_create(user=admin, username="erin")
    presented = _redeemed("erin", first.secret).pk
    second = users.user_reset(user=admin, username="erin")
    assert one_time.password_set(presented, NEW) is None
    assert one_time.redeem("erin", first.secret) is None
    assert one_time.redeem("erin", second.secret) is not None


def test_an_hour_after_it_was_presented_no_password_can_be_set(admin: User) -> None:
    made = users.user_create(user=admin, username="erin")
    presented = _redeemed("erin", made.secret).pk
    OneTimePassword.objects.update(used_at=timezone.now() - one_time.PERIOD)
    assert one_time.password_set(presented, NEW) is None


@pytest.mark.django_db(transaction=True)
def test_of_simultaneous_attempts_exactly_one_wins(admin: User) -> None:
    made = users.user_create(user=admin, username="erin")
    assert _at_once(8, lambda: one_time.redeem("erin", made.secret)) == 1
    presented = OneTimePassword.objects.get(user=made.user).pk
    assert _at_once(8, lambda: one_time.password_set(presented, NEW)) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "act", [users.user_reset, users.user_disable, None], ids=["reset", "disable", "shell"]
)
@pytest.mark.parametrize("presents", [True, False], ids=["presented", "set"])
def test_an_admin_who_is_faster_than_a_first_password_waits_for_none(
    admin: User, monkeypatch: pytest.MonkeyPatch, act: Callable[..., Any] | None, presents: bool
) -> None:
    """They hold the user's row when a password comes, and have yet to remove the one-time password."""
    made = users.user_create(user=admin, username="erin")
    if presents:
        other = Meanwhile(lambda: one_time.redeem("erin", made.secret))
    else:
        presented = _redeemed("erin", made.secret).pk
        other = Meanwhile(lambda: one_time.password_set(presented, NEW))
    issue = one_time.issue

    def begin(*_: object) -> None:
        other.begin()
        assert not other.is_over

    monkeypatch.setattr(users, "keep_an_admin", begin)
    monkeypatch.setattr(one_time, "issue", lambda user: (begin(), issue(user))[1])
    if act is None:
        users.admin_of_the_shell(username="erin", reset=True)
    else:
        act(user=admin, username="erin")
    assert other.result() is None, "the one-time password is gone"
    assert not User.objects.get(username="erin").has_usable_password()


@pytest.mark.django_db(transaction=True)
def test_two_admins_cannot_demote_or_disable_each_other_at_once(admin: User) -> None:
    factories.user("second", is_superuser=True, password=factories.PASSWORD)
    names = iter(("admin", "second"))
    lock = threading.Lock()

    def leave() -> object:
        with lock:
            name = next(names)
        actor = User.objects.get(username=name)
        other = "second" if name == "admin" else "admin"
        try:
            if name == "admin":
                return users.user_disable(user=actor, username=other)
            return users.user_change(user=actor, username=other, changes={"is_superuser": False})
        except (LastAdmin, AdminOnly):  # the latter where the other one was quicker
            return None

    assert _at_once(2, leave) == 1
    assert User.objects.filter(is_active=True, is_superuser=True).count() == 1


def test_the_last_admin_who_can_sign_in_stays(admin: User) -> None:
    users.user_create(user=admin, username="invited", is_superuser=True)  # may never come
    with pytest.raises(LastAdmin):
        users.user_disable(user=admin, username="admin")
    with pytest.raises(LastAdmin):
        users.user_change(user=admin, username="admin", changes={"is_superuser": False})
    factories.user("second", is_superuser=True, password=factories.PASSWORD)
    assert not users.user_change(user=admin, username="admin", changes={"is_superuser": False}).is_superuser


def test_a_disabled_user_is_out_at_once_and_gets_no_tokens_back(admin: User) -> None:
    erin = factories.user("erin", password=factories.PASSWORD)
    client = Client()
    client.force_login(erin)
    Token.objects.create(user=erin, name="laptop")
    users.user_disable(user=admin, username="erin")
    assert client.get("/me").status_code == 302
    assert authenticate(None, username="erin", password=factories.PASSWORD) is None
    users.user_enable(user=admin, username="erin")
    assert client.get("/me").status_code == 302
    assert not Token.objects.filter(user=erin).exists()
    assert authenticate(None, username="erin", password=factories.PASSWORD) == erin
    details = AuditEntry.objects.get(action="user.disable").details
    assert details == {"sessions": 1, "tokens": 1}


def test_a_reset_ends_sessions_and_takes_the_password_away(admin: User) -> None:
    erin = factories.user("erin", password=factories.PASSWORD)
    client = Client()
    client.force_login(erin)
    users.user_reset(user=admin, username="erin")
    assert client.get("/me").status_code == 302
    assert authenticate(None, username="erin", password=factories.PASSWORD) is None


def test_names_and_addresses_are_checked_all_at_once(admin: User) -> None:
    with pytest.raises(FieldsInvalid) as wrong:
        users.user_create(user=admin, username="no spaces", email="nowhere", first_name="x" * 151)
    assert [each["path"] for each in wrong.value.details["errors"]] == ["username", "email", "first_name"]
    with pytest.raises(NameTaken):
        users.user_create(user=admin, username="ADMIN")
    erin = users.user_create(user=admin, username="erin").user
    stale = frozenset({users.version(erin)})
    users.user_change(user=admin, username="erin", changes={"email": "e@example.org"}, if_match=stale)
    with pytest.raises(VersionChanged):
        users.user_change(user=admin, username="erin", changes={"email": ""}, if_match=stale)
    change = AuditEntry.objects.get(action="user.change")
    assert change.details == {"email": {"from": "", "to": "e@example.org"}}


def test_only_admins_may_and_service_accounts_are_not_users_here(admin: User) -> None:
    erin = factories.user("erin")
    factories.user("vision-lab.ci", is_service_account=True)
    with pytest.raises(AdminOnly):
        users.user_reset(user=erin, username="admin")
    with pytest.raises(NotFound):
        users.user_reset(user=admin, username="vision-lab.ci")
    assert {each.username for each in users.users(user=admin)} == {"admin", "erin"}


def test_a_service_account_cannot_log_in_in_any_way(admin: User) -> None:
    robot = factories.user("vision-lab.ci", is_service_account=True)
    for values in ({"password": "md5$x$y"}, {"is_superuser": True}):
        with pytest.raises(IntegrityError), transaction.atomic():
            User.objects.filter(pk=robot.pk).update(**values)
    client = Client()
    client.force_login(robot)
    assert client.get("/me").status_code == 302
    with pytest.raises(NotFound):
        users.admin_of_the_shell(username="vision-lab.ci", reset=True)
    secret = one_time.issue(robot)
    assert authenticate(None, username="vision-lab.ci", password=secret) is None


def test_sessions_are_listed_and_ended_one_or_all(admin: User) -> None:
    erin = factories.user("erin")
    clients = [Client(headers={"User-Agent": f"browser {n}"}, REMOTE_ADDR=f"10.0.0.{n}") for n in range(3)]
    for client in clients:
        client.post("/login")  # so that the address is known
        client.force_login(erin)
        assert client.get("/me").status_code == 200
    mine = row_key(clients[0].session)
    listed = sessions.sessions_of(user=erin, owner=erin, current=mine)
    assert [each.current for each in listed].count(True) == 1
    assert mine not in {each.id for each in listed}
    second = sessions.public_id(row_key(clients[1].session))
    sessions.session_end(user=erin, owner=erin, session_id=second)
    assert [client.get("/me").status_code for client in clients] == [200, 302, 200]
    Token.objects.create(user=erin, name="laptop")
    ended = sessions.sessions_end(user=admin, owner=erin, tokens=True)
    assert (ended.sessions, ended.tokens) == (2, 1)
    assert [client.get("/me").status_code for client in clients] == [302, 302, 302]
    with pytest.raises(NotFound):
        sessions.session_end(user=erin, owner=erin, session_id=second)


def test_a_request_that_ends_late_does_not_bring_its_session_back(admin: User) -> None:
    client = Client()
    client.force_login(admin)
    session = client.session
    session["early"] = "yes"
    sessions.sessions_end(user=admin, owner=admin)
    session["late"] = "yes"
    with pytest.raises(UpdateError):
        session.save()
    assert not admin.sessions.exists()


def test_manage_py_admin_creates_the_first_and_resets_one(db: None) -> None:
    secret = _said("admin", "root", "--email", "root@example.org")
    root = User.objects.get(username="root")
    assert root.is_platform_admin
    assert _redeemed("root", secret).user == root
    with pytest.raises(CommandError, match="--reset"):
        _said("admin", "root")
    with pytest.raises(CommandError, match="username"):
        _said("admin", "no spaces")
    User.objects.filter(pk=root.pk).update(is_active=False, is_superuser=False)
    again = _said("admin", "root", "--reset")
    root.refresh_from_db()
    assert root.is_platform_admin
    assert _redeemed("root", again).user == root
    with pytest.raises(CommandError, match="no user"):
        _said("admin", "nobody", "--reset")
    actions = list(AuditEntry.objects.order_by("pk").values_list("action", flat=True))
    assert actions == ["user.create", "user.reset"]


def test_an_invitation_lasts_days_not_hours() -> None:
    assert timedelta(days=1) <= one_time.VALID <= timedelta(days=7)


def _said(*command: str) -> str:
    """Run the command; the one-time password that it printed."""
    out = StringIO()
    call_command(*command, stdout=out)
    return out.getvalue().splitlines()[0].rpartition(" ")[2]


def _at_once(times: int, act: Callable[[], Any]) -> int:
    """Run it in as many threads, started together; how many got something."""
    ready = threading.Barrier(times)
    won: list[bool] = []

    def run() -> None:
        try:
            ready.wait()
            won.append(act() is not None)
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == times
    return sum(won)


@pytest.mark.parametrize("command", [["createsuperuser", "--noinput"], ["changepassword", "admin"]])
def test_django_makes_no_admin_and_sets_no_password_without_an_entry(
    admin: User, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"USERNAME": "mallory", "EMAIL": "m@example.org", "PASSWORD": NEW}.items():
        monkeypatch.setenv(f"DJANGO_SUPERUSER_{name}", value)
    monkeypatch.setattr("getpass.getpass", lambda *asked, **more: NEW)
    with pytest.raises(CommandError, match=r"manage\.py admin NAME"):
        call_command(*command)
    assert set(User.objects.filter(is_superuser=True).values_list("username", flat=True)) == {"admin"}
    assert authenticate(None, username="admin", password=factories.PASSWORD) is not None
