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

_lock = threading.Lock()
_planned: OrderedDict[tuple[str, int], tuple[float, Preview]] = OrderedDict()
"""By job and its newest event: what it was planned for ends with the next move, wish or edit."""


def outlook_of(job: Job) -> Preview:
    """The newest plan for this halted job, or a new one. One at a time per process: each takes a core for a while."""
    key = (job.pk, job.event_seq)
    with _lock:
        made_at, found = _planned.get(key, (0.0, None))
        if found is None or time.monotonic() - made_at > FRESH_S:
            found = if_resumed(job)
            _planned[key] = time.monotonic(), found
            _planned.move_to_end(key)
            while len(_planned) > KEPT:
                _planned.popitem(last=False)
        return found
