"""Allowed images in the admin console: the patterns, one per line, with a reason and their history."""

from __future__ import annotations

import re

import pytest

from tenants.models import Tenant, User
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
PAGE = "/admin-console/tenants/vision-lab/images"


def etag_in(html: str) -> str:
    return re.search(r'name="etag" value="([^"]+)"', html)[1].replace("&quot;", '"')  # type: ignore[index]


def test_an_admin_allows_images_and_the_history_says_who_and_why(
    lab: Tenant, root: User, signed_in: SignIn
) -> None:
    client = signed_in(root)
    assert "None allowed." in markup(client.get("/admin-console/tenants/vision-lab"))
    first = markup(client.get(PAGE))
    assert "Never changed." in first
    typed = {"own": "yes", "patterns": "registry.example/vision/**\r\n\r\n  registry.example/base:1.* \r\n"}
    typed |= {"etag": etag_in(first), "reason": "They maintain these"}
    done = markup(client.post(PAGE, typed, follow=True))
    assert "Allowed images updated." in done
    history = done[done.index('id="history"') :]
    assert "They maintain these" in history
    assert "root" in history
    lab.refresh_from_db()
    assert lab.image_patterns == ["registry.example/vision/**", "registry.example/base:1.*"]
    assert "registry.example/base:1.*" in markup(client.get("/admin-console/tenants/vision-lab"))
    again = markup(client.post(PAGE, typed, follow=True))
    assert "This has changed since you read it" in again
    follows = {"etag": etag_in(done), "reason": "As all others"}
    assert "Allowed images updated." in markup(client.post(PAGE, follows, follow=True))
    lab.refresh_from_db()
    assert lab.image_patterns is None


def test_what_is_wrong_is_named_next_to_what_was_typed(lab: Tenant, root: User, signed_in: SignIn) -> None:
    client = signed_in(root)
    typed = {"own": "yes", "patterns": "python\nteam/<b>", "etag": etag_in(markup(client.get(PAGE)))}
    answer = client.post(PAGE, typed)
    html = markup(answer)
    assert answer.status_code == 422
    assert "“python” must begin with a registry, such as docker.io/library/python" in html
    assert "“team/&lt;b&gt;” must be a registry and a repository" in html
    assert "A reason is required" in html
    assert "python\nteam/&lt;b&gt;</textarea>" in answer.content.decode()
    lab.refresh_from_db()
    assert lab.image_patterns is None
