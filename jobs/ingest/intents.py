"""What is requested of connected learners: to run, halt or cancel, and whether their token is still valid."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from django.db import connection, transaction

from jobs.states import PHASE_ORDER, SILENT_S, Phase
from jobs.tokens import ADMITTED, LIVE
from learner_agent.wire import JobIntent


def _listed(phases: Collection[str]) -> str:
    return ", ".join(f"'{phase}'" for phase in phases)


PREPARING = [phase for phase, order in PHASE_ORDER.items() if order < PHASE_ORDER[Phase.READY]]
STARTED = [phase for phase, order in PHASE_ORDER.items() if order > PHASE_ORDER[Phase.READY]]
MAY_START = f"""CASE
  WHEN a.learners = 1 OR l.phase IN ({_listed(STARTED)}) THEN true
  WHEN l.phase = '{Phase.READY}' THEN NOT EXISTS (SELECT 1 FROM jobs_learner peer
    WHERE peer.job_id = l.job_id AND peer.attempt = l.attempt AND peer.phase IN ({_listed(PREPARING)}))
  ELSE false END"""
"""A gang's programs start together, once every learner is ready."""
INTENTS_SQL = f"""
SELECT l.id, j.intent, j.state, j.stop_reason, j.intent_gen, j.grace_s, {MAY_START}, a.saves_requested, {LIVE},
  {ADMITTED}
FROM jobs_learner l
JOIN jobs_job j ON j.id = l.job_id
JOIN jobs_attempt a ON a.job_id = l.job_id AND a.n = l.attempt
WHERE l.id = ANY(%s)
"""
SEEN_SQL = """
UPDATE jobs_learner SET last_seen_at = now(),
  stored_at = CASE WHEN last_seen_at < now() - make_interval(secs => %s) THEN now() ELSE stored_at END
WHERE id IN (SELECT id FROM jobs_learner WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE)
"""
"""Locked by id first, as the writer does: both update many learners at once. After a silence, such as an outage
of the platform, the time in which nothing was stored counts from its end."""


STORED_SQL = """
UPDATE jobs_learner SET stored_at = now()
WHERE id = %s AND (stored_at IS NULL OR stored_at < now() - interval '5 seconds')
"""


@dataclass(frozen=True, slots=True)
class SessionState:
    """What a learner should do, and whether its token is still valid."""

    intent: JobIntent
    admitted: bool


@dataclass(frozen=True, slots=True)
class Resumption:
    """The server's cursors, from which a learner continues."""

    log: int
    sealed: bool
    metrics: dict[str, int]


def session_states(learner_ids: Collection[int]) -> dict[int, SessionState]:
    """The state of these learners by id; one whose row is gone is absent."""
    with connection.cursor() as cursor:
        cursor.execute(INTENTS_SQL, [list(learner_ids)])
        return {row[0]: SessionState(_intent(*row[1:9]), row[9]) for row in cursor.fetchall()}


def note_seen(learner_ids: Collection[int]) -> None:
    """Record that these learners were seen; once a second for all of a process is enough.

    It need not survive a crash, and waiting for the disk would hold the rows against the writer.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit TO off")
        cursor.execute(SEEN_SQL, [SILENT_S, sorted(learner_ids)])


def note_stored(learner_id: int) -> None:
    """Record that bytes of this learner's files have arrived; every few seconds is enough."""
    with connection.cursor() as cursor:
        cursor.execute(STORED_SQL, [learner_id])


def resumption(learner_id: int) -> Resumption | None:
    """The cursors of one learner; None if it is gone."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT log_bytes, log_sealed, metric_cursor FROM jobs_learner WHERE id = %s", [learner_id]
        )
        row = cursor.fetchone()
    return Resumption(row[0], row[1], {"jsonl": row[2]}) if row is not None else None


def _intent(
    intent: str, state: str, stop_reason: str, gen: int, grace_s: int, start: bool, save: int, live: bool
) -> JobIntent:
    """A stop that was not requested (preemption, a time limit, a lost learner) is a halt as well: save and end."""
    if not live or intent == "CANCEL" or (state == "STOPPING" and stop_reason == "cancel_requested"):
        return JobIntent("CANCEL", gen, grace_s, start)
    return JobIntent("HALT" if intent == "HALT" or state == "STOPPING" else "RUN", gen, grace_s, start, save)
