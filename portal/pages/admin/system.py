"""What the installation depends on, as /readyz and `manage.py doctor` find it, for a card that the overview fetches.

A part of its own, because one that hangs is waited for: the overview must not be.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from portal.health.checks import HealthCheck, run_checks
from portal.health.diagnosis import audit_log, broker, mail, variables
from portal.pages.guard import admins_only


@require_GET
@admins_only
def card(request: HttpRequest) -> HttpResponse:
    """Each part with what was found and, where it cannot do its work, why and what to do."""
    parts = [_described(part, needed=True) for part in run_checks()]
    parts += [_described(part(), needed=False) for part in (broker, mail, audit_log, variables)]
    return render(request, "console/_system.html", {"parts": parts, "now": timezone.now()})


def _described(part: HealthCheck, *, needed: bool) -> dict[str, Any]:
    """Without a part that is not needed all goes on, only slower; a warning looks the same."""
    kind = ("slow" if part.warnings else "good") if part.ready else "bad" if needed else "slow"
    return {"part": part, "kind": kind}
