"""The server's description of the job, as it was when the inputs were fetched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learner_agent.spool import Spool
from learner_agent.untrusted_files import LARGE_BYTES, number_or
from learner_agent.wire_fields import MAX_RANK

JOB = "shipper/job.json"
UNRESTORED = "unrestored"
"""Added to the description: paths of results that could not be restored."""


class JobDescription:
    """Kept in the spool for a shipper that takes over from this one. A program may have damaged it since."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._fetched: dict[str, Any] = {}

    def set(self, job: dict[str, Any]) -> None:
        """Raises OSError if the spool takes no more."""
        self._fetched = job
        self._spool.write(JOB, job)

    def read(self) -> dict[str, Any]:
        """Without any key if nothing was fetched; values of any type."""
        return self._spool.read(JOB, most=LARGE_BYTES) or self._fetched

    def strings(self, key: str) -> list[str]:
        """The list of texts under this key; what is none is left out."""
        found = self.read().get(key)
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

    def world(self) -> int:
        """The number of learners in the gang."""
        return world(self.read())


def world(job: Mapping[str, Any]) -> int:
    """The number of learners in the gang, by a description that a program may have damaged."""
    return max(1, int(number_or(job.get("learners"), 1, most=MAX_RANK)))
