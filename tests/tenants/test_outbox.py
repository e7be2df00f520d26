"""Security notices by mail: each is sent once, and no worker is held for long by a mail server that is not well."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.mail.utils import DNS_NAME
from django.db.models.functions import Now
from django.utils import timezone

from portal.settings.email import email_settings
from tenants import audit, outbox, outgoing, smtp
from tenants.models import SecurityNotice, User
from tenants.pauses import PAUSE_MAX_S, PAUSE_S
from tenants.tokens import token_create
from tests import factories
from tests.mail_server import MailServer

pytestmark = pytest.mark.django_db


@pytest.fixture
def server(settings: LazySettings) -> Iterator[MailServer]:
    with MailServer() as one:
        use(settings, one)
        yield one


@pytest.fixture
def alice(settings: LazySettings) -> User:
    settings.LUTHIER_SENDS_MAIL = True
    settings.LUTHIER_PUBLIC_URL = "https://gpus.example"
    settings.DEFAULT_FROM_EMAIL = "luthier@gpus.example"
    return factories.member(factories.tenant("vision"), "alice")


def use(settings: LazySettings, server: MailServer) -> None:
    for name, value in email_settings(f"smtp://127.0.0.1:{server.port}").items():
        setattr(settings, name, value)


def changed(of: User) -> SecurityNotice:
    audit.record(actor=of, action="password.change", target=of.get_username())
    return of.security_notices.latest("pk")


def due_again() -> None:
    SecurityNotice.objects.filter(try_at__isnull=False).update(try_at=Now() - timedelta(seconds=1))


def test_a_notice_is_mailed_once_in_plain_text(server: MailServer, alice: User) -> None:
    changed(alice)
    assert outbox.send_due({})["sent"] == 1
    assert outbox.send_due({})["sent"] == 0
    ((to, mail),) = server.mails
    assert to == ["alice@example.org"]
    assert mail["To"] == "alice@example.org"
    assert mail["From"] == "luthier@gpus.example"
    assert mail["Subject"] == "Luthier: Your password was changed"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail.get_content_type() == "text/plain"
    text = mail.get_content()
    assert "alice" in text
    assert "https://gpus.example/me" in text
    assert alice.security_notices.get().sent_at is not None


def test_nothing_that_a_user_chose_but_the_name_is_in_a_mail(server: MailServer, alice: User) -> None:
    """No line of theirs, no address for a reader to open, no secret."""
    _token, secret = token_create(user=alice, owner=alice, name="see http://evil.example/ now")
    assert outbox.send_due({})["sent"] == 1
    whole = server.mails[0][1].as_string()
    assert "evil" not in whole
    assert secret not in whole
    assert secret[:8] not in whole


@pytest.mark.parametrize("name", ["a\nBcc: eve@example.org", "a\r\n\r\nhello", "=?utf-8?q?a=0ABcc:_x?="])
def test_a_name_cannot_add_a_header_or_a_recipient(server: MailServer, alice: User, name: str) -> None:
    """No service makes such a name; a row of an import may have one."""
    User.objects.filter(pk=alice.pk).update(username=name)
    alice.refresh_from_db()
    SecurityNotice.objects.create(user=alice, kind="password.change", to="alice@example.org", try_at=Now())
    outbox.send_due({})
    for to, mail in server.mails:
        assert to == ["alice@example.org"]
        assert mail["Bcc"] is None
        assert "eve@" not in str(mail["Subject"])


def test_an_address_that_would_add_a_header_is_given_up(server: MailServer, alice: User) -> None:
    SecurityNotice.objects.create(
        user=alice, kind="password.change", to="a@x.org\nBcc: b@x.org", try_at=Now()
    )
    changed(alice)
    assert outbox.send_due({})["sent"] == 1, "and the next one is sent"
    assert [to for to, _mail in server.mails] == [["alice@example.org"]]
    assert not SecurityNotice.objects.filter(try_at__isnull=False).exists()


def test_two_workers_send_each_once(server: MailServer, alice: User) -> None:
    """The second one begins while the first has a mail under way."""
    changed(alice)
    first = outbox.claim()
    assert first is not None
    assert outbox.send_due({})["sent"] == 0
    assert server.mails == []


def test_a_worker_that_ends_before_it_notes_the_mail_sends_the_same_message_again(
    server: MailServer, alice: User
) -> None:
    """So that a mail program shows it once: the id is the notice's."""
    notice = changed(alice)
    outbox.send_due({})
    SecurityNotice.objects.filter(pk=notice.pk).update(sent_at=None, try_at=Now())
    outbox.send_due({})
    assert len({mail["Message-ID"] for _to, mail in server.mails}) == 1
    assert len(server.mails) == 2


def test_what_the_server_refuses_for_good_waits_until_it_is_corrected(
    server: MailServer, alice: User, caplog: pytest.LogCaptureFixture
) -> None:
    """It refuses so, too, if it does not take mails of this installation."""
    server.behavior = "refuse"
    notice = changed(alice)
    done = outbox.send_due({})
    notice.refresh_from_db()
    assert notice.try_at is not None
    assert notice.sent_at is None
    assert "550" in notice.problem
    assert "550" in done["problem"]
    assert "550" in outbox.send_due(done)["problem"], "while nothing is due"
    assert "a security notice cannot be mailed" in caplog.text
    assert outbox.waiting()[0] == 1
    server.behavior = "take"
    due_again()
    done = outbox.send_due(done)
    assert (done["sent"], done["problem"]) == (1, "")


def test_what_it_refuses_for_now_is_tried_again_later(server: MailServer, alice: User) -> None:
    server.behavior = "later"
    notice = changed(alice)
    outbox.send_due({})
    notice.refresh_from_db()
    assert notice.try_at is not None
    assert notice.try_at > timezone.now() + timedelta(seconds=30)
    server.behavior = "take"
    due_again()
    assert outbox.send_due({})["sent"] == 1


def test_a_server_that_is_down_costs_no_notice_and_is_asked_less_often(
    alice: User, settings: LazySettings
) -> None:
    server = MailServer()
    use(settings, server)
    server.__enter__()
    server.__exit__()
    changed(alice)
    results: list[dict[str, Any]] = [{}]
    for _ in range(12):
        results.append(outbox.send_due(results[-1]))
    pauses = [result["next_in_s"] for result in results[1:]]
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_MAX_S
    assert "next_in_s" in results[-1]
    assert results[-1]["problem"]
    assert alice.security_notices.get().tries == 0
    with MailServer() as back:
        use(settings, back)
        done = outbox.send_due(results[-1])
        assert (done["sent"], done["failures"], done["next_in_s"]) == (1, 0, None)


@pytest.mark.parametrize("behavior", ["silent", "drip", "hang"])
def test_a_server_that_does_not_go_on_holds_a_worker_for_a_bounded_time(
    alice: User, settings: LazySettings, monkeypatch: pytest.MonkeyPatch, behavior: str
) -> None:
    monkeypatch.setattr(smtp, "TALK_S", 0.5)
    for _ in range(5):
        changed(alice)
    with MailServer(behavior) as server:
        use(settings, server)
        settings.EMAIL_TIMEOUT = 0.4
        began = time.monotonic()
        done = outbox.send_due({})
        assert time.monotonic() - began < 30, "it has an end"
        assert server.connections == 1
    assert done["sent"] == 0
    assert done["next_in_s"] >= PAUSE_S
    assert alice.security_notices.filter(try_at__isnull=False).count() == 5


@pytest.mark.parametrize(
    ("behavior", "url"), [("silent", "smtps://127.0.0.1:{}"), ("no tls", "smtp://me:secret@127.0.0.1:{}")]
)
def test_a_server_that_does_not_go_on_with_tls_is_cut_off_as_well(
    alice: User, settings: LazySettings, monkeypatch: pytest.MonkeyPatch, behavior: str, url: str
) -> None:
    """Meanwhile the connection has no socket, or another one than before."""
    monkeypatch.setattr(smtp, "TALK_S", 0.5)
    changed(alice)
    with MailServer(behavior) as server:
        for name, value in email_settings(url.format(server.port)).items():
            setattr(settings, name, value)
        settings.EMAIL_TIMEOUT = 60
        began = time.monotonic()
        done = outbox.send_due({})
        assert time.monotonic() - began < 30
    assert done["failures"] == 1
    assert alice.security_notices.filter(try_at__isnull=False).count() == 1


@pytest.mark.parametrize("asked", ["getaddrinfo", "getfqdn"])
def test_a_resolver_that_hangs_holds_no_worker(
    alice: User, settings: LazySettings, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """Neither the server's name nor this machine's own, which is said in the greeting, is waited for without end."""
    over = threading.Event()
    monkeypatch.delattr(DNS_NAME, "_fqdn", raising=False)  # Django asks once for each process
    monkeypatch.setattr(socket, asked, lambda *_, **__: over.wait(120) and [])
    monkeypatch.setattr(outgoing, "STEP_S", 0.2)
    changed(alice)
    with MailServer() as server:
        use(settings, server)
        began = time.monotonic()
        done = outbox.send_due({})
        assert time.monotonic() - began < 60, "the resolver takes 120 s"
        assert "was not resolved in time" in done["problem"]
        assert (server.connections, done["failures"], done["next_in_s"]) == (0, 1, PAUSE_S)
    over.set()
    assert alice.security_notices.filter(try_at__isnull=False).count() == 1


def test_a_host_that_no_name_could_be_is_a_failure(alice: User, settings: LazySettings) -> None:
    changed(alice)
    with MailServer() as server:
        use(settings, server)
        settings.EMAIL_HOST = f"{'m' * 64}.example"
        done = outbox.send_due({})
    assert "is no name of a host" in done["problem"]
    assert done["failures"] == 1


def test_a_notice_of_days_ago_is_no_news_by_mail(server: MailServer, alice: User) -> None:
    notice = changed(alice)
    SecurityNotice.objects.filter(pk=notice.pk).update(at=Now() - outbox.STALE)
    assert outbox.send_due({})["sent"] == 0
    notice.refresh_from_db()
    assert notice.try_at is None
    assert "days" in notice.problem


def test_one_mail_that_breaks_the_connection_does_not_keep_others(server: MailServer, alice: User) -> None:
    server.behavior = "cut"
    broken = changed(alice)
    token_create(user=alice, owner=alice, name="other")
    done = outbox.send_due({})
    assert (done["sent"], done["failures"]) == (0, 1)
    assert outbox.send_due(done)["sent"] == 1, "it is tried later, the other one now"
    broken.refresh_from_db()
    assert broken.sent_at is None
    assert broken.try_at is not None
    due_again()
    assert outbox.send_due({})["sent"] == 1


def test_without_a_mail_server_nothing_is_looked_for(
    settings: LazySettings, alice: User, django_assert_num_queries: Any
) -> None:
    settings.LUTHIER_SENDS_MAIL = False
    with django_assert_num_queries(0):
        assert outbox.send_due({})["sent"] == 0
