"""What the portal's own pages send: a session cookie with its CSRF header, and bodies that are not JSON."""

from __future__ import annotations

import io
import zipfile

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from jobs.models import Runtime
from jobs.spec import to_yaml
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def page() -> Client:
    """A browser that enforces CSRF, signed in as alice, with its CSRF header."""
    Runtime.objects.create(slug="plain", title="Python alone")
    alice = factories.member(factories.tenant("vision-lab"), "alice")
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(alice)
    browser.get("/t/vision-lab/jobs/new")
    browser.defaults["HTTP_X_CSRFTOKEN"] = browser.cookies["csrftoken"].value
    return browser


def test_a_page_may_send_yaml(page: Client) -> None:
    text = to_yaml(factories.spec(framework="plain"))
    answer = page.post("/api/v1/tenants/vision-lab/jobs:validate", text, content_type="application/yaml")
    assert answer.status_code == 200
    assert answer.json()["valid"] is True


def test_a_page_may_send_an_archive(page: Client) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("train.py", "print('hello')\n")
    upload = SimpleUploadedFile("code.zip", packed.getvalue(), "application/zip")
    answer = page.post("/api/v1/tenants/vision-lab/uploads", {"archive": upload})
    assert answer.status_code == 201, answer.content
    assert answer.json()["files"] == 1


def test_a_page_without_the_token_changes_nothing(page: Client) -> None:
    del page.defaults["HTTP_X_CSRFTOKEN"]
    answer = page.post("/api/v1/tenants/vision-lab/jobs:validate", "name: a", content_type="application/yaml")
    assert answer.status_code == 403
