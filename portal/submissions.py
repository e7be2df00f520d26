"""How many jobs a user may submit, validate and upload code for within a minute, by REST and pages together.

Less than a small server gets through (docs/adr/0099-limit-of-submissions.md): people and their scripts do not meet it,
and a user's flood leaves a part of the server to others. A repeat of an Idempotency-Key counts, and gets its first
answer whatever the count.
"""

from __future__ import annotations

from enum import StrEnum

from django.conf import settings

from jobs.errors import TooManySubmissions
from portal import budgets
from tenants.models import User

UPLOADS_COST = 4
"""Of uploads there may be one for so many submits: each is unpacked, checked and stored."""


class What(StrEnum):
    """Each has a count of its own. The words are of the refusal."""

    JOBS = "jobs submitted"
    CHECKS = "specs validated"
    UPLOADS = "archives uploaded"


def spend(user: User, what: What) -> None:
    """Count one more. Raises TooManySubmissions above the user's limit."""
    most: int = settings.LUTHIER_SUBMISSIONS_PER_MINUTE
    if what is What.UPLOADS:
        most = max(1, most // UPLOADS_COST)
    if budgets.within(f"submissions:{what.name}:{user.pk}", most):
        return
    raise TooManySubmissions(
        f"You have {most} {what} within a minute, the limit of a user here. Try again in a minute. "
        "An operator can raise LUTHIER_SUBMISSIONS_PER_MINUTE."
    )
