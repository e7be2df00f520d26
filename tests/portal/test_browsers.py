"""What a browser and a proxy can do with responses, pages and requests of a session."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone

from jobs.models import Job
from jobs.retention import end_sessions
from portal.live.identity import Credentials, who
from tenants.models import Session, User
from tenants.services.sessions import sessions_of
from tenants.sessions import SIGNED_IN
from tests import factories
from tests.markup import markup
from tests.portal.test_connections import connected, served

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def job() -> Job:
    return factories.job(owner=factories.member(factories.tenant("vision-lab"), "alice"))


@pytest.mark.django_db
def test_raw_bytes_are_an_attachment_in_a_sandbox(job: Job) -> None:
    """Whatever a program printed, a browser neither draws nor runs it in the portal's origin."""
    client = Client()
    client.force_login(job.owner)
    answer = client.get(f"/api/v1/jobs/{job.pk}/logs/raw")
    assert b"".join(answer.streaming_content) == b""
    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["Content-Disposition"].startswith(f'attachment; filename="{job.pk}-')
    assert answer["Content-Security-Policy"] == "sandbox; default-src 'none'"


@pytest.mark.django_db
def test_a_session_ends_two_weeks_after_it_began_however_it_is_used() -> None:
    erin = factories.user("erin")
    client = Client()
    client.force_login(erin)
    began = Session.objects.get(user=erin)
    assert began.started_at is not None
    Session.objects.filter(user=erin).update(
        started_at=timezone.now() - timedelta(seconds=settings.SESSION_COOKIE_AGE + 60),
        expire_date=timezone.now() + timedelta(days=1),
    )
    assert client.get("/me")["Location"].startswith("/login")
    assert not Session.objects.filter(user=erin).exists()


def _unused_for(owner: User, days: float) -> Session:
    Session.objects.filter(user=owner).update(seen_at=timezone.now() - timedelta(days=days))
    return Session.objects.get(user=owner)


@pytest.mark.django_db
def test_a_session_that_is_not_used_for_a_week_ends_and_use_keeps_it() -> None:
    erin = factories.user("erin")
    client = Client()
    client.force_login(erin)
    _unused_for(erin, 6.9)
    assert client.get("/me").status_code == 200
    assert timezone.now() - Session.objects.get(user=erin).seen_at < timedelta(minutes=1)
    _unused_for(erin, 7.1)
    assert who(Credentials(session_key=client.session.session_key or "")) is None, (
        "nor does it keep a socket open"
    )
    assert not Session.objects.filter(user=erin).exists()
    client.force_login(erin)
    _unused_for(erin, 7.1)
    assert sessions_of(user=erin, owner=erin) == []
    assert end_sessions() == 1
    assert client.get("/me")["Location"].startswith("/login")


@pytest.mark.django_db
def test_what_an_open_page_does_on_its_own_is_no_use_of_its_session(job: Job) -> None:
    client = Client()
    client.force_login(job.owner)
    row = _unused_for(job.owner, 3)
    by_script = {"HTTP_SEC_FETCH_MODE": "cors", "HTTP_SEC_FETCH_SITE": "same-origin"}
    assert client.get(f"/api/v1/jobs/{job.pk}", **by_script).status_code == 200
    assert client.get(f"/t/vision-lab/jobs/{job.pk}", **by_script).status_code == 200
    assert who(Credentials(session_key=client.session.session_key or "")) == job.owner
    assert Session.objects.get(pk=row.pk).seen_at == row.seen_at
    client.post("/me/appearance", {"theme": "dark"}, **by_script)
    assert Session.objects.get(pk=row.pk).seen_at > row.seen_at, "a form that is sent is use"


@pytest.mark.django_db
def test_a_change_of_a_session_does_not_prolong_it() -> None:
    client = Client()
    client.force_login(factories.user("erin"))
    began = timezone.now() - timedelta(days=10)
    session = client.session
    session[SIGNED_IN] = {"at": began.isoformat()}
    session.save()
    ends = Session.objects.get(user__username="erin").expire_date
    assert ends == began + timedelta(seconds=settings.SESSION_COOKIE_AGE)


def test_passwords_are_masked_and_may_be_pasted_and_filled_in() -> None:
    fields = [
        field
        for template in (ROOT / "templates").rglob("*.html")
        for field in re.findall(r"<input[^>]*password[^>]*>", template.read_text())
        if template.name != "invited.html"  # a one-time password is typed from what one sees
    ]
    assert len(fields) >= 8
    for field in fields:
        assert 'type="password"' in field, field
        assert re.search(r'autocomplete="(current|new)-password"', field), field
        assert not re.search(r"maxlength|onpaste|readonly", field), field
    sources = "".join(path.read_text() for path in (ROOT / "static" / "src").rglob("*.ts"))
    assert "paste" not in "".join(re.findall(r'addEventListener\("\w+"', sources))


@pytest.mark.django_db
def test_every_page_has_the_way_out(job: Job) -> None:
    client = Client()
    client.force_login(job.owner)
    for path in ("/me", "/t/vision-lab/", f"/t/vision-lab/jobs/{job.pk}", "/me/secrets"):
        assert 'action="/logout"' in markup(client.get(path)), path


@pytest.mark.parametrize(
    "lengths",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 4\r\nContent-Length: 40\r\n",
        b"Transfer-Encoding: x, chunked\r\nTransfer-Encoding: identity\r\n",
    ],
    ids=["length-and-chunks", "two-lengths", "two-encodings"],
)
async def test_a_request_with_two_lengths_is_refused_and_what_follows_is_not_run(lengths: bytes) -> None:
    ran: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        ran.append(scope["path"])
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    smuggled = (
        b"POST /outer HTTP/1.1\r\nHost: x\r\n"
        + lengths
        + b"\r\n0\r\n\r\nGET /inner HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    async with served(app) as port, connected(port) as (reader, writer):
        writer.write(smuggled)
        answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert "/inner" not in ran
