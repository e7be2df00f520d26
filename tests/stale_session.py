"""A session whose user has shown their factors, but not within the last minutes."""

from __future__ import annotations

from django.test import Client

from tenants.sessions import FRESH, PROVED_AT


def grow_stale(client: Client) -> None:
    session = client.session
    session[PROVED_AT] -= FRESH.total_seconds() + 1
    session.save()
