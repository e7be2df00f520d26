"""Where a person is signed in: each session carries a hash that ends with his password or his generation number."""

from __future__ import annotations

from tenants.models import User

GENERATION = "sessions"


def end_all(user: User) -> None:
    """Make every session of this person worthless; the caller's own must be renewed by update_session_auth_hash."""
    user.preferences = {**user.preferences, GENERATION: int(user.preferences.get(GENERATION, 0)) + 1}
    User.objects.filter(pk=user.pk).update(preferences=user.preferences)
