"""Stored plans, and whether the snapshot that each was made from still gives the same decisions."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import gpu_scheduler
from gpu_scheduler import record
from gpu_scheduler.cycle import plan
from gpu_scheduler.policies import BadPolicy
from gpu_scheduler.policies.base import Policy
from gpu_scheduler.policies.selection import policy_from
from jobs.models import DecidedPlan, JobEvent

DECIDES_NOTHING = ("clusters", "simulation")
"""Parts of gpu_scheduler that a plan does not use."""


class Verdict(StrEnum):
    """What came of planning a stored snapshot again. SAME: the stored decisions. CHANGED: others, by another program
    than then. DIFFERENT: others, by the same program, which must not be. DAMAGED: the snapshot is not the one of its
    digest. UNREADABLE: a snapshot, or a policy, of another version. GONE: the snapshot is not kept."""

    SAME = "same"
    CHANGED = "changed"
    DIFFERENT = "different"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Checked:
    """A stored plan, made again. same_program: the policy and the source that decides are those of then. differs: which
    lists of decisions differ, each with what was stored and what is decided now."""

    digest: str
    at: datetime
    policy: str
    verdict: Verdict
    same_program: bool
    decided: Mapping[str, Any]
    differs: Mapping[str, tuple[Any, Any]]


def program_of(policy: Policy) -> str:
    """A digest of what decides: the policy with its parameters, and the source that makes plans."""
    return sha256(f"{policy!r} {_source()}".encode()).hexdigest()


@cache
def _source() -> str:
    folder = Path(gpu_scheduler.__file__).parent
    parts = sorted(path.relative_to(folder) for path in folder.rglob("*.py"))
    found = sha256()
    for part in parts:
        if part.parts[0] not in DECIDES_NOTHING:
            found.update(f"{part.as_posix()}\0".encode() + (folder / part).read_bytes() + b"\0")
    return found.hexdigest()


def check_newest(at_most: int, job: str = "", snapshot: str = "") -> Iterator[Checked]:
    """Plan the newest stored snapshots again, or those that decided something for a job, or of a digest that begins
    like this; the newest first. Changes nothing."""
    rows = DecidedPlan.objects.filter(digest__startswith=snapshot).order_by("-pk")
    if job:
        rows = rows.filter(digest__in=_digests(job))
    return map(_checked, rows[:at_most].iterator(chunk_size=20))


def _digests(job: str) -> list[str]:
    """The snapshots of a job's decisions. Reservations have no event of their own."""
    named = JobEvent.objects.filter(job=job, numbers__plan__isnull=False)
    digests = set(named.values_list("numbers__plan__snapshot", flat=True))
    reserved = DecidedPlan.objects.filter(decided__reserved__contains=[job])
    return sorted({str(digest) for digest in digests} | set(reserved.values_list("digest", flat=True)))


def _checked(row: DecidedPlan) -> Checked:
    same_program, differs = False, dict[str, tuple[Any, Any]]()
    try:
        policy = policy_from(row.policy)
        same_program = program_of(policy) == row.program
        verdict, differs = _planned_again(row, policy, same_program=same_program)
    except (BadPolicy, record.NotReadable):
        verdict = Verdict.UNREADABLE
    except Exception:
        if same_program:
            raise
        verdict = Verdict.UNREADABLE  # to this program, the snapshot of another one
    return Checked(row.digest, row.at, row.policy, verdict, same_program, row.decided, differs)


def _planned_again(
    row: DecidedPlan, policy: Policy, *, same_program: bool
) -> tuple[Verdict, dict[str, tuple[Any, Any]]]:
    if row.snapshot is None:
        return Verdict.GONE, {}
    try:
        text = zlib.decompress(row.snapshot)
    except zlib.error:
        return Verdict.DAMAGED, {}
    if sha256(text).hexdigest() != row.digest:
        return Verdict.DAMAGED, {}
    snapshot = record.read(text, policy)
    now = record.decisions(plan(snapshot, explained=False), snapshot)
    # What an earlier version did not store is not compared.
    differs = {
        name: (row.decided[name], now[name]) for name in now if row.decided.get(name, now[name]) != now[name]
    }
    if not differs:
        return Verdict.SAME, {}
    return Verdict.DIFFERENT if same_program else Verdict.CHANGED, differs
