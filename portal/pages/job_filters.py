"""The filters of a list of jobs, as its address and saved views have them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from jobs.ids import is_job_id
from jobs.models import Job
from jobs.selectors.jobs import ENDED_WITHIN, Listing, job_listing
from jobs.states import ACTIVE, State
from tenants.models import Tenant
from tenants.services.views import FILTERS

KINDS = {"true": True, "false": False}
"""What the filter for opportunistic jobs takes: these alone, or all others."""
SAVED = r"v\d{1,15}"
"""The key of a saved view: tenants.services.views.key_of."""
ENDED = {"24h": "24 hours", "7d": "7 days"}
"""What the filter for the time of the end takes, and how it is said: names of jobs.selectors.jobs.ENDED_WITHIN."""


@dataclass(frozen=True)
class Filters:
    """What the address asks for; unknown values are left out and named, never passed on.

    view: the key of the saved view that was opened, which says it where several have the same filters; "" if none.
    """

    q: str = ""
    state: str = ""
    owner: str = ""
    tag: str = ""
    gpu_type: str = ""
    project: str = ""
    opportunistic: str = ""
    ended: str = ""
    before: str = ""
    view: str = ""
    problems: tuple[str, ...] = ()

    @classmethod
    def read(cls, query: Any) -> Filters:
        problems = []
        state = query.get("state", "")
        if state and state != "active" and state not in State.__members__:
            problems.append(f"Unknown state {state[:40]!r}.")
            state = ""
        opportunistic = query.get("opportunistic", "")
        if opportunistic and opportunistic not in KINDS:
            problems.append(f"Unknown kind of job {opportunistic[:40]!r}.")
            opportunistic = ""
        ended = query.get("ended", "")
        if ended and ended not in ENDED:
            problems.append(f"Unknown time of the end {ended[:40]!r}.")
            ended = ""
        before = query.get("before", "")
        if before and not is_job_id(before):
            problems.append("Invalid page cursor; showing the newest.")
            before = ""
        text = {
            name: query.get(name, "").strip()[:120] for name in ("q", "owner", "tag", "gpu_type", "project")
        }
        view = query.get("view", "")
        return cls(
            view=view if re.fullmatch(SAVED, view) else "",
            state=state,
            opportunistic=opportunistic,
            ended=ended,
            before=before,
            problems=tuple(problems),
            **text,
        )

    @property
    def chosen(self) -> dict[str, str]:
        """The filters that are set, without the page mark."""
        return {name: value for name in FILTERS if (value := getattr(self, name))}

    @property
    def kept(self) -> dict[str, str]:
        """What an address of the same list has: the filters, and the view that was opened."""
        return ({"view": self.view} if self.view else {}) | self.chosen

    @property
    def address(self) -> str:
        """The query of the list with them; of none it says so, for an address without a query opens the view that a
        user has chosen."""
        return urlencode(self.kept) or "view=all"


def rows_of(request: HttpRequest, tenant: Tenant, filters: Filters) -> QuerySet[Job]:
    """Newest first."""
    return listing_of(request, tenant, filters).rows.order_by("-pk")


def listing_of(request: HttpRequest, tenant: Tenant, filters: Filters) -> Listing:
    states = ACTIVE if filters.state == "active" else [State(filters.state)] if filters.state else []
    owner = request.user.get_username() if filters.owner == "me" else filters.owner
    return job_listing(
        user=request.user,
        tenant=tenant.slug,
        states=states,
        owner=owner,
        tag=filters.tag,
        gpu_type=filters.gpu_type,
        project=filters.project,
        opportunistic=KINDS.get(filters.opportunistic),
        ended_after=timezone.now() - ENDED_WITHIN[filters.ended] if filters.ended else None,
        q=filters.q,
    )
