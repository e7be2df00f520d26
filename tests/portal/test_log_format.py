"""The server's log: a line for each record, its time in UTC, and who was refused what."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from collections.abc import Iterator

import pytest
from asgiref.testing import ApplicationCommunicator
from django.conf import LazySettings
from django.test import Client

from portal.asgi_handler import ThreadedHandler
from portal.log_format import FieldFormatter
from tenants.models import Membership, Token
from tenants.roles import Role
from tests import factories


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(FieldFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Iterator[list[str]]:
    handler, logger = Lines(), logging.getLogger("django.request")
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)


def test_a_record_is_one_line_in_utc_whatever_a_user_sends() -> None:
    forged = "a\n2026-01-01T00:00:00.000Z INFO jobs: forged\r\x1b[2J\u2028b"
    record = logging.LogRecord("jobs", logging.INFO, "x.py", 1, "seen %s", (forged,), None)
    record.created, record.msecs, record.job = 1_769_860_800.0, 123.0, forged
    line = FieldFormatter().format(record)
    assert line.startswith("2026-01-31T12:00:00.123Z INFO jobs: seen a\\n2026")
    assert line.isprintable(), line
    assert re.search(r" job='a\\n", line)


def test_an_exception_that_quotes_a_user_forges_no_record() -> None:
    try:
        raise ValueError("a\n2026-01-01T00:00:00.000Z INFO jobs: forged\r\x1b[2J\u2028b")
    except ValueError:
        record = logging.LogRecord("jobs", logging.ERROR, "x.py", 1, "failed", None, sys.exc_info())
    first, *traceback = FieldFormatter().format(record).split("\n")
    assert first.endswith("jobs: failed")
    assert any("INFO jobs: forged" in line for line in traceback)
    assert all(line.startswith("  ") and line.isprintable() for line in traceback), traceback


@pytest.mark.django_db
def test_who_was_refused_what_is_logged_with_the_address(lines: list[str]) -> None:
    lab = factories.tenant("vision-lab")
    alice = factories.member(lab, "alice")
    Membership.objects.filter(user=alice).update(role=Role.VIEWER)
    _, secret = Token.objects.create(user=alice, name="test", expiry=None)
    browser = Client(REMOTE_ADDR="10.0.0.7")
    browser.force_login(alice)
    assert browser.post("/t/vision-lab/members/add", {"username": "x", "role": "viewer"}).status_code == 403
    program = Client(REMOTE_ADDR="10.0.0.8", headers={"Authorization": f"Bearer {secret}"})
    assert program.delete("/api/v1/tenants/vision-lab/members/bob").status_code == 403
    stranger = Client(REMOTE_ADDR="10.0.0.9", headers={"Authorization": "Bearer lut_wrong"})
    assert stranger.get("/api/v1/me").status_code == 401
    found = [re.search(r"status_code=(\d+) .*address=(\S+) user=(\S*)", line) for line in lines]
    assert [each and each.groups() for each in found] == [
        ("403", "10.0.0.7", "alice"),
        ("403", "10.0.0.8", "alice"),
        ("401", "10.0.0.9", ""),
    ]


@pytest.mark.parametrize(
    ("path", "status", "code"), [("/login", 413, "body_too_large"), ("/api/v1/me", 413, "body_too_large")]
)
def test_a_body_that_is_refused_before_it_is_read_is_logged(
    caplog: pytest.LogCaptureFixture, path: str, status: int, code: str
) -> None:
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "client": ("10.0.0.7", 1),
             "headers": [(b"host", b"localhost"), (b"content-length", b"1000000000")]}  # fmt: skip

    async def ask() -> None:
        sender = ApplicationCommunicator(ThreadedHandler(), scope)
        await sender.send_input({"type": "http.request", "body": b"", "more_body": True})
        start, body = await sender.receive_output(20), await sender.receive_output(20)
        if path.startswith("/api/"):
            number = {name.lower(): value for name, value in start["headers"]}[b"x-request-id"].decode()
            assert number
            assert json.loads(body["body"])["request_id"] == number
        await sender.send_input({"type": "http.disconnect"})
        await sender.wait(20)

    asyncio.run(ask())
    (seen,) = [vars(each) for each in caplog.records if each.message == "body refused"]
    assert (seen["path"], seen["address"], seen["status"], seen["code"]) == (path, "10.0.0.7", status, code)


@pytest.mark.django_db
def test_unknown_hosts_and_rest_without_tls_are_logged(
    caplog: pytest.LogCaptureFixture, settings: LazySettings
) -> None:
    assert Client(headers={"Host": "evil.example"}).get("/login").status_code == 400
    assert any("evil.example" in each.getMessage() for each in caplog.records)
    settings.SECURE_SSL_REDIRECT = True
    assert Client(REMOTE_ADDR="10.0.0.8").get("/api/v1/me").status_code == 403
    (seen,) = [vars(each) for each in caplog.records if each.getMessage() == "request without TLS refused"]
    assert (seen["path"], seen["address"]) == ("/api/v1/me", "10.0.0.8")
