"""The one format for times that leave the platform."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(at: datetime | None) -> str | None:
    """RFC 3339, UTC, milliseconds."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z") if at else None
