"""The step of a checkpoint without a manifest, as the names of its files state it by the rule of the job's spec."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from learner_agent.shipper.metrics.log_rules import SearchTimer, TooSlow, step_of

ALL_NAMES_CPU_S = 2.0
"""Processor time for all names together; one name has that of a metric rule on a line."""


def step_in_names(names: Iterable[str], pattern: str, timer: SearchTimer) -> int | None:
    """The highest step that the rule finds in a name; None if it finds none. Raises TooSlow and re.error."""
    rule = re.compile(pattern)
    until = time.thread_time() + ALL_NAMES_CPU_S
    found: list[int] = []
    timer.start()
    try:
        for name in names:
            match = timer.search(rule, name)
            step = step_of(match["step"] or "") if match else None
            found += [step] if step is not None else []
            if time.thread_time() > until:
                raise TooSlow
    finally:
        timer.stop()
    return max(found, default=None)
