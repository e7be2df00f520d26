"""The log of errors: what went wrong unexpectedly, and which server could not prove who it is."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import Client

from portal.pages import me
from portal.settings.email import email_settings
from tenants import audit, outbox
from tests import factories
from tests.certificates import untrusted_server

pytestmark = pytest.mark.django_db

SECRET = "hunter2hunter2"


def test_an_unexpected_error_is_in_the_log_with_the_number_that_its_user_sees(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise RuntimeError("broken on purpose")

    browser = Client(raise_request_exception=False)
    browser.force_login(factories.user("alice"))
    monkeypatch.setattr(me, "frame", fail)
    answer = browser.get("/me")
    assert answer.status_code == 500
    (line,) = [vars(each) for each in caplog.records if each.getMessage() == "page failed"]
    assert line["levelno"] == logging.ERROR
    assert line["path"] == "/me"
    assert line["request_id"] in answer.content.decode()
    assert "broken on purpose" not in answer.content.decode()
    assert any(each.exc_info and "broken on purpose" in str(each.exc_info[1]) for each in caplog.records)


def test_a_provider_that_cannot_prove_its_name_is_logged_and_gets_nothing(
    tmp_path: Path, settings: LazySettings, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.identity_provider.process import CLIENT_ID, CLIENT_SECRET

    with untrusted_server(tmp_path) as (port, received):
        settings.LUTHIER_OIDC_ISSUER = f"https://localhost:{port}"
        app = {"provider_id": "oidc", "name": "ID", "client_id": CLIENT_ID, "secret": CLIENT_SECRET}
        settings.SOCIALACCOUNT_PROVIDERS = {
            "openid_connect": {"APPS": [app | {"settings": {"server_url": settings.LUTHIER_OIDC_ISSUER}}]}
        }
        answer = Client().get("/login/sso")
        assert answer["Location"].startswith("/login")
    assert received == []
    (line,) = [vars(each) for each in caplog.records if each.getMessage() == "single sign-on failed"]
    assert (line["reason"], line["error"]) == ("provider_unreachable", "SSLError")


def test_a_mail_server_that_cannot_prove_its_name_is_logged_and_gets_nothing(
    tmp_path: Path, settings: LazySettings, caplog: pytest.LogCaptureFixture
) -> None:
    with untrusted_server(tmp_path) as (port, received):
        for name, value in email_settings(f"smtps://luthier:{SECRET}@localhost:{port}").items():
            setattr(settings, name, value)
        audit.record(actor=factories.user("alice"), action="password.change", target="alice")
        assert outbox.send_due({})["sent"] == 0
    assert received == []
    (line,) = [vars(each) for each in caplog.records if "not mailed" in each.getMessage()]
    assert "certificate verify failed" in line["error"]
    assert SECRET not in caplog.text
