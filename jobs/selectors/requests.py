"""What a job requested, as its row has it, and what was measured of it since: for the scheduler's gangs.

The texts are JSON. A plan reads ten thousand rows that repeat a few of them, so each text is read once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec
from django.db.models import F
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce

from gpu_scheduler.model import Profile, Range, Resources
from jobs.models import Job
from jobs.spec.model import size_of
from jobs.spec.quantities import parse_memory


def requested(job: str = "") -> Coalesce:
    """The resources of the spec as JSON; job: a prefix that leads to it.

    A spec is stored apart from its row and compressed: of a job that waits, it would cost more than all else.
    """
    return Coalesce(F(f"{job}resources"), KeyTextTransform("resources", f"{job}spec"))


@lru_cache(1000)
def _stated(resources: str) -> Mapping[str, Any]:
    stated = json.loads(resources)
    if not isinstance(stated, dict):
        raise TypeError(f"resources are {resources}")
    return stated


@lru_cache(1000)
def per_learner(slot_type: str | None, slots: int, resources: str | None) -> Resources:
    """resources: as the spec states them, as JSON; None: it does not. Raises TypeError or ValueError."""
    stated = _stated(resources) if resources else {}
    cpus, memory = stated.get("cpus"), stated.get("memory")
    return Resources.of_slots(
        slot_type,
        slots,
        cpus=None if cpus is None else float(cpus),
        memory_mib=None if memory is None else parse_memory(memory),
    )


@lru_cache(1000)
def elastic_range(resources: str | None) -> Range | None:
    """With how many learners an elastic job can run; None: it has one size, which its row says.

    Raises TypeError or ValueError.
    """
    stated = _stated(resources).get("learners") if resources else None
    return _range(stated) if isinstance(stated, Mapping) else None


def _range(stated: Any) -> Range:
    try:
        return size_of(stated)
    except KeyError as error:
        raise ValueError(f"a range lacks {error}") from None


@lru_cache(1000)
def profile(resources: str | None, measured: str | None) -> Profile:
    """Of an elastic job: the batch that it requested, and what was measured of it. Raises TypeError or ValueError.

    What cannot be read of the latter, as another version may have written it, is measured again.
    """
    batch = _stated(resources).get("batch") if resources else None
    try:
        known = msgspec.json.decode(measured or "{}", type=Profile)
    except msgspec.MsgspecError:
        known = Profile()
    return replace(known, batch=None if batch is None else _range(batch))


def measured(known: Profile) -> str:
    """What `profile` reads."""
    return msgspec.json.encode(replace(known, batch=None)).decode()


def size_range(job: Job) -> Range:
    """With how many learners it can run; of a job of one size that size. Raises TypeError or ValueError."""
    return elastic_range(job.resources) or Range.fixed(job.learners)


def asked(job: Job) -> int:
    """The slots that it needs to start, over all its learners."""
    return job.slots * size_range(job).min
