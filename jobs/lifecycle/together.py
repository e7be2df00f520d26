"""Bring jobs that are due at once as far as they can go together: read in a few statements, moved in one commit.

What a job does alone it does here, too, decided and noted by the same functions, but for two things: one observation of
the cluster serves all, and the same moves of several jobs are one transaction. Whatever goes wrong, or is not
one of these common steps, leaves the job to `reconcile.hold`, alone and under the same lease: so a job with broken or
locked rows, or on a slow cluster, costs others nothing but this attempt. See docs/adr/0092-moves-share-a-commit.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

from django.conf import settings
from django.db import connection

from gpu_scheduler.clusters.base import Observation
from jobs.failpoints import fp
from jobs.lifecycle import leases, reconcile, transitions
from jobs.lifecycle.decision import Act, Decision, decide, moves_ahead
from jobs.lifecycle.facts import JobObservation, Move
from jobs.lifecycle.leases import Lease
from jobs.lifecycle.observation import JobRows, load_all
from jobs.models import Runtime
from jobs.retries import database_away, rows_locked
from jobs.states import FINAL, HOLDS_GPUS
from jobs.wake import SHARED

logger = logging.getLogger(__name__)

GATHER_S = 0.25
"""A notified job waits at most so long for the turn of others."""
_turn = threading.Lock()
QUICK_S = 1.0
"""Calls to the cluster are made in a shared turn for so long: on a slow one, they are for several threads."""
TURN_S = 2.0
"""Jobs are worked on alone, one after the other, for so long; then the others are due for any worker."""

Group = list[tuple[JobRows, Lease]]
Decided = tuple[JobRows, JobObservation, Decision]


def reconcile_due(job_id: str, *, owner: str) -> bool:
    """Bring this job as far as it can go now, unless another worker has it, and with it others that are due: one is
    notified for many. True if the scheduling cycle must run."""
    with _one_turn():
        found = leases.claim_with_due(job_id, owner, SHARED)
        began = time.monotonic()
        wants_cycle, left = bring_on(found, notified=bool(found) and found[0].job_id == job_id)
    return hold_left(left, began, shared=len(found) > 1) or wants_cycle


@contextmanager
def _one_turn() -> Iterator[None]:
    """One turn of notified jobs at a time: those that are notified during it have the next one, together. None waits
    for longer than GATHER_S, whatever the cluster does to the others."""
    taken = _turn.acquire(timeout=GATHER_S)
    try:
        yield
    finally:
        if taken:
            _turn.release()


def hold_left(left: Sequence[Lease], began: float, *, shared: bool) -> bool:
    """Work on the jobs that a turn left, each alone, for as long as TURN_S after it began. shared: there was one; else
    they were claimed just now."""
    wants_cycle = False
    hold = hold_alone if shared else reconcile.hold
    for number, lease in enumerate(left):
        if number and time.monotonic() - began > TURN_S:
            hand_back(left[number:])
            break
        try:
            wants_cycle |= hold(lease)
        except Exception:
            hand_back(left[number + 1 :])
            raise
    return wants_cycle


def hold_alone(lease: Lease) -> bool:
    """Work on the job of a lease that a shared turn left, unless it was lost: it may have been left for that. True if
    the scheduling cycle must run. Raises an error only at an outage: any other is this job's alone."""
    try:
        return leases.renew(lease) and reconcile.hold(lease)
    except Exception as error:
        if _is_outage(error):
            raise
        logger.exception("a job's turn failed", extra={"job": lease.job_id})
    return False


def hand_back(unused: Iterable[Lease]) -> None:
    """Release these leases if the database can be reached: it may be but one connection that broke. Those that it does
    not release end by themselves."""
    try:
        if not connection.in_atomic_block:  # that would end the caller's
            connection.close_if_unusable_or_obsolete()
        for lease in unused:
            leases.hand_back(lease)
    except Exception as error:
        logger.info("leases were not handed back", extra={"error": f"{type(error).__name__}: {error}"})


def _is_outage(error: Exception) -> bool:
    """Whether the other jobs would fail, too. A locked row is one job's."""
    return database_away(error) and not rows_locked(error)


def bring_on(found: Sequence[Lease], *, notified: bool = False) -> tuple[bool, list[Lease]]:
    """Work on these jobs as far as that can be shared, and release those that are done. Whether the scheduling cycle
    must run, and the leases of those that must be worked on alone, in the order in which they came. notified: a
    person may wait for the first one, as for a halt. If it must be worked on alone, the others wait until it has been.
    """
    if len(found) < 2:
        return False, list(found)
    turn = _Turn(found, first=found[0] if notified else None)
    try:
        for step in range(reconcile.MAX_STEPS):
            turn.check_leases(first=not step)
            if not turn.pending:
                break
            turn.step()
            turn.hold_first()
    except Exception:
        hand_back([*turn.left, *turn.pending.values()])
        raise
    left = {lease.job_id for lease in (*turn.left, *turn.pending.values())}
    return turn.wants_cycle, [lease for lease in found if lease.job_id in left]


@dataclass(slots=True)
class _Effects:
    """What a step was decided to have. moves: by their shared_key. launched: accepted by the cluster, to be noted.
    ends: what `release` wants to know."""

    moves: dict[tuple[object, ...], tuple[Sequence[Move], Group]] = field(default_factory=dict)
    acts: list[Decided] = field(default_factory=list)
    launched: list[Decided] = field(default_factory=list)
    ends: list[tuple[Lease, Decision, int]] = field(default_factory=list)


class _Turn:
    """One turn of several jobs. pending: those that still take part. left: those that must be worked on alone. first:
    the notified one, if any; see bring_on."""

    def __init__(self, found: Sequence[Lease], first: Lease | None) -> None:
        self.pending = {lease.job_id: lease for lease in found}
        self.left: list[Lease] = []
        self.wants_cycle = False
        self._first = first
        self._acting_s = 0.0
        self._runtimes: dict[str, Runtime] = {}

    def check_leases(self, *, first: bool) -> None:
        """Nothing is begun here under a lease that may end soon."""
        least_s = reconcile.CALL_S if first else settings.LUTHIER_LEASE_S / 2
        for job, lease in list(self.pending.items()):
            if not lease.may_act(least_s):
                self._leave(job)

    def step(self) -> None:
        """Observe all, decide for each, then have the effects: what is the same for several, together. The cluster is
        last: jobs that are done, and the first one, do not wait for it."""
        effects, acted = _Effects(), _Effects()
        for job, (rows, observation) in self._observed().items():
            self._try([job], self._decide, rows, observation, effects)
        for moves, group in effects.moves.values():
            self._try([rows.job.pk for rows, _ in group], self._move, moves, group, effects)
        self._end(effects)
        starts = [rows for rows, _, decision in effects.acts if decision.act is Act.LAUNCH]
        if starts:
            self._try([rows.job.pk for rows in starts], self._read_runtimes, starts)
        ended = [(rows, seen) for rows, seen, decision in effects.acts if decision.act is Act.REMOVE]
        if ended:
            self._try([rows.job.pk for rows, _ in ended], transitions.note_reports, ended)
        for rows, observation, decision in effects.acts:
            if self._first not in self.left:
                self._try([rows.job.pk], self._act, rows, observation, decision, acted)
        if acted.launched:
            self._try([rows.job.pk for rows, _, _ in acted.launched], self._note_launched, acted)
        self._end(acted)

    def hold_first(self) -> None:
        """Work on the first job alone, if it must be."""
        if self._first in self.left:
            self.left.remove(self._first)
            self.wants_cycle |= hold_alone(self._first)

    def _try(self, jobs: Sequence[str], work: Callable[..., None], *of: Any) -> None:
        """If anything goes wrong, these jobs are worked on alone: that knows what to do about it."""
        try:
            work(*of)
        except Exception as error:
            if _is_outage(error):
                raise
            logger.info(
                "jobs go on alone", extra={"jobs": list(jobs), "why": f"{type(error).__name__}: {error}"}
            )
            for job in jobs:
                self._leave(job)

    def _leave(self, job: str) -> None:
        if (lease := self.pending.pop(job, None)) is not None:
            self.left.append(lease)

    def _observed(self) -> dict[str, tuple[JobRows, JobObservation]]:
        """Of each job its rows, and what the cluster shows where it may have its gang."""
        found: dict[str, JobRows] = {}
        self._try(list(self.pending), lambda: found.update(load_all(list(self.pending))))
        for purged in self.pending.keys() - found.keys():
            del self.pending[purged]
        seen = {job: (rows, rows.observation) for job, rows in found.items()}
        gangs: defaultdict[str, list[JobRows]] = defaultdict(list)
        for rows in found.values():
            if rows.attempt is not None and reconcile.may_have_gang(rows):
                gangs[rows.attempt.cluster].append(rows)
        for alike in gangs.values():
            self._try([rows.job.pk for rows in alike], self._observe, alike, seen)
        return {job: both for job, both in seen.items() if job in self.pending}

    def _observe(self, alike: Sequence[JobRows], seen: dict[str, tuple[JobRows, JobObservation]]) -> None:
        """Ask the one cluster of these jobs for all their gangs."""
        shown = reconcile.cluster_of(alike[0]).observe([rows.observation.gang_name for rows in alike])
        for rows in alike:
            self._try([rows.job.pk], self._note, rows, shown, seen)
        reconcile.note_alive([seen[rows.job.pk] for rows in alike if rows.job.pk in self.pending])

    def _note(
        self, rows: JobRows, shown: Observation, seen: dict[str, tuple[JobRows, JobObservation]]
    ) -> None:
        """Put what the cluster shows of this job in the place of its rows alone."""
        seen[rows.job.pk] = reconcile.noted(rows, self.pending[rows.job.pk], shown)

    def _decide(self, rows: JobRows, observation: JobObservation, effects: _Effects) -> None:
        """Add a job to those that make the same moves, to those that need the cluster, or to those that are done."""
        job, lease, decision = rows.job.pk, self.pending[rows.job.pk], decide(observation)
        if decision.move is not None:
            ahead = moves_ahead(observation, decision.move)
            if moves := list(takewhile(partial(transitions.may_share, rows), ahead)):
                key = transitions.shared_key(rows, moves)
                effects.moves.setdefault(key, (moves, []))[1].append((rows, lease))
            else:
                self._leave(job)
        elif decision.act in (Act.STOP, Act.CHOOSE):
            self._leave(job)
        elif decision.act is not Act.NONE:
            effects.acts.append((rows, observation, decision))
        else:
            self._done(rows, observation, decision, effects)

    def _act(self, rows: JobRows, observation: JobObservation, decision: Decision, effects: _Effects) -> None:
        """Act on the cluster for a job, which is then done or observed again."""
        lease = self.pending.get(rows.job.pk)
        if lease is None:
            return
        if self._acting_s > QUICK_S:
            self._leave(rows.job.pk)
            return
        fp(f"{decision.act}.before_cluster")
        began = time.monotonic()
        try:
            if decision.act is Act.LAUNCH:
                if reconcile.launch(rows, lease, self._runtimes.get(rows.job.pk)):
                    effects.launched.append((rows, observation, decision))
            elif not reconcile.act(rows, observation, decision, lease):
                self._done(rows, observation, decision, effects)
        finally:
            self._acting_s += time.monotonic() - began

    def _read_runtimes(self, starts: Sequence[JobRows]) -> None:
        self._runtimes = reconcile.runtimes_of(starts)

    def _note_launched(self, acted: _Effects) -> None:
        """Note it for all of them, which are then done: a worker that dies before launches them again."""
        transitions.note_all_launched([(rows, self.pending[rows.job.pk]) for rows, _, _ in acted.launched])
        fp("launch.after_noted")
        for each in acted.launched:
            self._try([each[0].job.pk], self._done, *each, acted)

    def _done(
        self, rows: JobRows, observation: JobObservation, decision: Decision, effects: _Effects
    ) -> None:
        lease = self.pending[rows.job.pk]
        if decision.note is not None:
            transitions.note_reason(rows, lease, decision.note)
        effects.ends.append((lease, decision, observation.intent_gen))

    def _move(self, moves: Sequence[Move], group: Group, effects: _Effects) -> None:
        """Move them. Those that are final are done: nothing more would be decided for them."""
        if len(group) == len(moves) == 1:
            transitions.move(group[0][0], moves[0], group[0][1])
        else:
            transitions.move_all(group, moves)
        self.wants_cycle |= moves[-1].to not in HOLDS_GPUS
        if moves[-1].to in FINAL:
            effects.ends += [(lease, Decision(), rows.observation.intent_gen) for rows, lease in group]

    def _end(self, effects: _Effects) -> None:
        if effects.ends:
            jobs = [lease.job_id for lease, _, _ in effects.ends]
            self._try(jobs, self._release, effects.ends)

    def _release(self, ends: Sequence[tuple[Lease, Decision, int]]) -> None:
        """A lease that is not released so, as its job's intent is newer or its row locked, is for working alone."""
        fp("reconcile.before_release")
        released = leases.release_all(
            [(lease, decision.requeue_after_s, gen) for lease, decision, gen in ends]
        )
        fp("reconcile.after_release")
        for lease, decision, _ in ends:
            if lease.job_id in released:
                self.wants_cycle |= decision.wants_cycle
                self.pending.pop(lease.job_id, None)
            else:
                self._leave(lease.job_id)
