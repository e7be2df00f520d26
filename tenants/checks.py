"""Checks of texts before they become rows, shared by services, so that pages and REST reject the same input."""

from __future__ import annotations

import re
from typing import Any

from tenants.errors import FieldsInvalid, problem
from tenants.roles import Role

SLUG = re.compile(r"[a-z0-9][a-z0-9_-]*", re.ASCII)


def refuse(*found: dict[str, Any] | None) -> None:
    """Raise FieldsInvalid with all problems; None means no problem."""
    if wrong := [each for each in found if each is not None]:
        raise FieldsInvalid(errors=wrong)


def text(path: str, value: str, longest: int) -> dict[str, Any] | None:
    """A text for people: not empty, printable, at most ``longest`` characters."""
    if not value.strip():
        return problem(path, "required", "must not be empty")
    if len(value) > longest:
        return problem(path, "too_long", f"must have at most {longest} characters", value, longest)
    if not value.isprintable():
        return problem(path, "not_printable", "must contain printable characters only", ascii(value))
    return None


def slug(path: str, value: str, longest: int) -> dict[str, Any] | None:
    """A name for URLs: lowercase letters, digits, - and _."""
    if len(value) > longest or not SLUG.fullmatch(value):
        rule = f"1 to {longest} lowercase letters, digits, - and _, starting with a letter or digit"
        return problem(path, "not_a_slug", f"must be {rule}", value, rule)
    return None


def account_role(role: Role) -> dict[str, Any] | None:
    """The role of a service account."""
    if role != Role.MANAGER:
        return None
    allowed = [Role.VIEWER.value, Role.RESEARCHER.value]
    return problem("role", "not_allowed", "a service account can be researcher at most", role, allowed)
