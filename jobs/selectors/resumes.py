"""What a resume of a halted job would bring, planned at most once in a few seconds however many look at its page."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from jobs.models import Job
from jobs.selectors.effects import Preview, if_resumed

FRESH_S = 5.0
"""So long one plan is shown: the whole queue is planned for it, and the page says "a moment ago"."""
KEPT = 200

_looking, _planning = threading.Lock(), threading.Lock()
"""Two, so that a plan that is still fresh is shown at once while another is made."""
_planned: OrderedDict[tuple[str, int], tuple[float, Preview]] = OrderedDict()
"""By job and its newest event: what it was planned for ends with the next move, wish or edit."""


def outlook_of(job: Job) -> Preview:
    """The newest plan for this halted job, or a new one. One at a time per process: each takes a core for a while."""
    key = (job.pk, job.event_seq)
    found = _fresh(key)
    if found is None:
        with _planning:
            found = _fresh(key)  # made by who was before us
            if found is None:
                found = if_resumed(job)
                _keep(key, found)
    return found


def _fresh(key: tuple[str, int]) -> Preview | None:
    with _looking:
        made_at, found = _planned.get(key, (0.0, None))
    return None if found is None or time.monotonic() - made_at > FRESH_S else found


def _keep(key: tuple[str, int], found: Preview) -> None:
    with _looking:
        _planned[key] = time.monotonic(), found
        _planned.move_to_end(key)
        while len(_planned) > KEPT:
            _planned.popitem(last=False)
