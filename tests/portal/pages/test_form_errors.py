"""A form says everything that is wrong with it at once, and keeps what was typed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings

from tenants.models import User
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

TEMPLATES = Path(settings.BASE_DIR) / "templates"
FORM = re.compile(r'<form method="post"[^>]*>.*?</form>', re.DOTALL)
CHECKED = re.compile(r'<(?:input|textarea)\b[^>]*?(?: required\b| pattern=| minlength=|type="email")')
USER_FIELDS = (TEMPLATES / "console/_user_fields.html").read_text()
SIGN_IN = ("login", "welcome/invited")
"""What the server finds there is one and the same error for all fields."""


def test_no_form_of_many_fields_leaves_its_checks_to_the_browser() -> None:
    """A browser stops at the first field that it objects to; the server names all of them."""
    found = []
    for path in sorted(TEMPLATES.rglob("*.html")):
        name = str(path.relative_to(TEMPLATES))
        for form in FORM.findall(path.read_text()):
            fields = len(
                CHECKED.findall(form.replace('{% include "console/_user_fields.html" %}', USER_FIELDS))
            )
            if fields > 1 and not name.startswith(SIGN_IN):
                found.append((name, " novalidate>" in form.split("\n", 1)[0]))
    assert len(found) >= 5
    assert [name for name, is_left_to_the_server in found if not is_left_to_the_server] == []


@pytest.mark.django_db
def test_all_errors_of_a_new_user_show_at_once_beside_what_was_typed(signed_in: SignIn, admin: User) -> None:
    typed = {"username": "Bad Name!", "email": "not-an-address", "first_name": "Erin"}
    answer = signed_in(admin).post("/admin-console/new-user", typed)
    page = markup(answer)
    assert answer.status_code == 422
    assert "2 fields" in page
    for name, value in typed.items():
        assert re.search(rf'name="{name}"[^>]*value="{value}"', page)
    assert re.findall(r'aria-describedby="(problem-\w+)"', page) == ["problem-username", "problem-email"]


@pytest.mark.django_db
def test_all_errors_of_a_new_tenant_show_at_once_beside_what_was_typed(
    signed_in: SignIn, admin: User
) -> None:
    typed = {"name": "", "slug": "Bad Slug!", "manager": "no-such-user", "reason": ""}
    answer = signed_in(admin).post("/admin-console/tenants/new", typed)
    assert answer.status_code == 422
    assert set(answer.context["problems"]) == {"name", "slug", "manager", "reason"}
    assert 'value="Bad Slug!"' in markup(answer)


@pytest.mark.django_db
def test_a_token_without_name_and_password_says_so_of_both(signed_in: SignIn, alice: User) -> None:
    answer = signed_in(alice).post("/t/vision-lab/tokens/new", {"name": "", "password": ""})
    assert answer.status_code == 422
    assert set(answer.context["problems"]) == {"name", "password"}
