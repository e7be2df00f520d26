"""Signing out everywhere: each session carries a hash of the user's password and of a generation number."""

from __future__ import annotations

from tenants.models import User

GENERATION = "sessions"


def end_all(user: User) -> None:
    """Invalidate every session of this user; renew the caller's own with update_session_auth_hash."""
    user.preferences = {**user.preferences, GENERATION: int(user.preferences.get(GENERATION, 0)) + 1}
    User.objects.filter(pk=user.pk).update(preferences=user.preferences)
