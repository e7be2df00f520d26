"""SQL of usage: how attempts and waits become slot-seconds of days. The one definition for what is read row by row and
for what is rolled up (jobs.usage_days), so that the two agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from jobs.accounting import COUNTS_UNTIL
from jobs.models.job import LIFE_SQL
from jobs.selectors.platform_stops import waited_s_sql
from jobs.states import AFTER_STOPPING, BY_ORDER, State

LOSSES = {State.FAILED, *(reason for reason, then in AFTER_STOPPING.items() if then is State.QUEUED)}
"""Outcomes of attempts whose work after the newest checkpoint is lost, or repeated by the next one: failures, and stops
by the scheduler or the platform. By order of the scheduler nothing is lost with a save that was offered after it. What
an owner halts or cancels is theirs to lose."""


def _listed(outcomes: Iterable[str]) -> str:
    return ", ".join(f"'{outcome}'" for outcome in sorted(outcomes))


SETTLE = timedelta(minutes=10)
"""How long ago an attempt or a wait must have ended to be rolled up: a checkpoint whose commit began before the end of
its attempt may come after it, and counts."""

LOST_FROM = f"""CASE WHEN attempt.closed_at IS NULL OR attempt.outcome NOT IN ({_listed(LOSSES)}) THEN NULL
       WHEN attempt.outcome IN ({_listed(BY_ORDER)}) AND EXISTS (
         SELECT FROM jobs_checkpoint AS saved
         WHERE saved.job_id = attempt.job_id AND saved.attempt = attempt.n
           AND saved.committed_at IS NOT NULL AND saved.created_at >= (
             SELECT max(at) FROM jobs_jobevent AS stop
             WHERE stop.job_id = attempt.job_id AND stop.attempt = attempt.n AND stop.to_state = 'STOPPING'))
       THEN NULL
       ELSE coalesce((SELECT max(committed_at) FROM jobs_checkpoint AS saved
                      WHERE saved.job_id = attempt.job_id AND saved.attempt = attempt.n
                        AND saved.committed_at <= attempt.closed_at), attempt.opened_at)
  END"""
"""When the lost work of an attempt began, of a row of jobs_attempt named attempt; null: none is lost."""
LOST = f"""
SELECT round(coalesce(slots * learners * greatest(0, extract(epoch FROM until - lost_from)), 0), 3)::float8
FROM (SELECT attempt.slots, attempt.learners, {COUNTS_UNTIL} AS until, {LOST_FROM} AS lost_from
      FROM jobs_attempt AS attempt WHERE attempt.job_id = %s AND attempt.n = %s) AS ended
"""
"""The slot-seconds that an attempt lost, as far as known so soon."""

PIECES = f"""
held AS (
  SELECT attempt.job_id, attempt.slot_type, attempt.slots * attempt.learners AS size, attempt.opened_at AS a,
         {COUNTS_UNTIL} AS b, attempt.lo, attempt.hi,
         {LOST_FROM} AS lost_from, attempt.opportunistic
  FROM attempts AS attempt
),
ended_waits AS (
  SELECT move.job_id, entry.at AS a, move.at AS b, move.lo, move.hi
  FROM left_queue AS move CROSS JOIN LATERAL (
    SELECT at FROM jobs_jobevent WHERE job_id = move.job_id AND n < move.n AND to_state = 'QUEUED'
    ORDER BY n DESC LIMIT 1) AS entry
),
part AS (
  SELECT job.tenant_id, job.owner_id, held.job_id, held.slot_type, held.size, held.a, held.b, held.lo, held.hi,
         held.lost_from, TRUE AS holds, held.opportunistic
  FROM held JOIN jobs_job AS job ON job.id = held.job_id
  UNION ALL
  SELECT job.tenant_id, job.owner_id, wait.job_id,
         CASE WHEN job.gpus = 0 THEN 'cpu' WHEN job.gpu_type = '' THEN 'any' ELSE job.gpu_type END,
         job.slots * job.learners, wait.a, wait.b, wait.lo, wait.hi, NULL, FALSE, FALSE
  FROM (SELECT * FROM ended_waits UNION ALL SELECT * FROM waiting) AS wait
  JOIN jobs_job AS job ON job.id = wait.job_id
),
piece AS (
  SELECT part.tenant_id, part.owner_id, part.slot_type, span.day, part.opportunistic,
    CASE WHEN holds THEN size * extract(epoch FROM span.b - span.a) ELSE 0 END::float8 AS used,
    CASE WHEN holds THEN 0 ELSE size * {waited_s_sql("span.a", "span.b")} END::float8 AS waited,
    CASE WHEN lost_from IS NULL THEN 0
      ELSE size * greatest(0, extract(epoch FROM span.b - greatest(lost_from, span.a))) END::float8 AS lost
  FROM part JOIN LATERAL (
    SELECT day::date AS day, greatest(part.a, part.lo, day AT TIME ZONE 'UTC') AS a,
           least(part.b, part.hi, (day + interval '1 day') AT TIME ZONE 'UTC') AS b
    FROM generate_series(date_trunc('day', greatest(part.a, part.lo) AT TIME ZONE 'UTC'),
                         least(part.b, part.hi) AT TIME ZONE 'UTC', interval '1 day') AS day
  ) AS span ON span.a < span.b
)"""
"""Slot-seconds of attempts, left_queue (events by which jobs left the queue) and waiting (job_id, a, b, lo, hi), each
cut to lo and hi, by job and UTC day. Only the days of one part are looked at, not all days for each part."""

FIRST_WAIT = f"{waited_s_sql('job.created_at', 'attempt.opened_at')}::float8"
"""Seconds from a job's submission to the start of its first attempt, without those of a stopped platform."""
FIRST_START = "attempt.n = 1 AND NOT attempt.opportunistic"
"""Which attempts count in waits. An opportunistic job may wait for as long as others take everything, which says
nothing of how long its tenant waits for what it may have."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time as whole UTC days [first, last), which are rolled up, and what it has of other days (edges)."""

    first: date
    last: date
    edges: Sequence[tuple[datetime, datetime]]

    @classmethod
    def of(cls, start: datetime, end: datetime, now: datetime) -> Span:
        """A span that goes up to now has all of today: nothing that has ended counts later than that."""
        start, end = _utc(start), _utc(end)
        first = start.date()
        if _midnight(first) < start and first < date.max:
            first += timedelta(days=1)
        last = date.max if end > now - SETTLE / 2 else end.date()
        if first >= last:
            return cls(first, first, [(start, end)])
        edges = [(start, _midnight(first)), (_midnight(last), end)]
        return cls(first, last, [(lo, hi) for lo, hi in edges if lo < hi])

    @property
    def values(self) -> dict[str, date]:
        """The parameters of SQL: first, last, and lo and hi of each edge by its number."""
        edges = {
            f"{name}{n}": edge[index]
            for n, edge in enumerate(self.edges)
            for index, name in enumerate(("lo", "hi"))
        }
        return {"first": self.first, "last": self.last} | edges


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time.min, UTC)


def _utc(at: datetime) -> datetime:
    try:
        return at.astimezone(UTC)
    except OverflowError:  # within a day of the first or the last year
        return at.replace(tzinfo=UTC)


_NOT_DUE = """NOT EXISTS (SELECT 1 FROM jobs_usagedue AS due
  WHERE due.job_id = {0}.job_id AND due.holds = {1} AND due.n = {0}.n)"""
_OF_DUE = """jobs_usagedue AS due JOIN {0} ON {0}.job_id = due.job_id AND {0}.n = due.n
  WHERE due.tenant_id = %(tenant)s AND due.holds = {1}"""

_ALIVE_IN_EDGE = f"""(SELECT id FROM jobs_job
  WHERE tenant_id = %(tenant)s AND {LIFE_SQL} && tstzrange(%(lo{{0}})s, %(hi{{0}})s)) AS alive"""
"""By an index. What ended after an edge is no bound: an edge a year ago would read all that ended since."""

ATTEMPTS = f"""
  SELECT attempt.*, %(start)s::timestamptz AS lo, %(end)s::timestamptz AS hi FROM jobs_attempt AS attempt
  WHERE attempt.tenant_id = %(tenant)s AND attempt.held AND attempt.opened_at < %(end)s
  UNION ALL
  SELECT jobs_attempt.*, %(start)s, %(end)s FROM {_OF_DUE.format("jobs_attempt", "TRUE")}
    AND jobs_attempt.closed_at > %(start)s AND jobs_attempt.opened_at < %(end)s"""
"""Those that are not rolled up."""
ATTEMPTS_OF_EDGE = f"""
  UNION ALL
  SELECT attempt.*, %(lo{{0}})s, %(hi{{0}})s
  FROM {_ALIVE_IN_EDGE} JOIN jobs_attempt AS attempt ON attempt.job_id = alive.id
  WHERE attempt.closed_at > %(lo{{0}})s AND attempt.opened_at < %(hi{{0}})s
    AND {_NOT_DUE.format("attempt", "TRUE")}"""
LEFT_QUEUE = f"""
  SELECT jobs_jobevent.job_id, jobs_jobevent.n, jobs_jobevent.at, %(start)s::timestamptz AS lo,
    %(end)s::timestamptz AS hi
  FROM {_OF_DUE.format("jobs_jobevent", "FALSE")} AND jobs_jobevent.at > %(start)s"""
LEFT_QUEUE_OF_EDGE = f"""
  UNION ALL
  SELECT move.job_id, move.n, move.at, %(lo{{0}})s, %(hi{{0}})s
  FROM {_ALIVE_IN_EDGE} JOIN jobs_jobevent AS move ON move.job_id = alive.id
  WHERE move.from_state = 'QUEUED' AND move.to_state <> '' AND move.at > %(lo{{0}})s
    AND {_NOT_DUE.format("move", "FALSE")}"""
WAITING = """
  SELECT job.id AS job_id, entry.at AS a, now() AS b, %(start)s::timestamptz AS lo, %(end)s::timestamptz AS hi
  FROM jobs_job AS job CROSS JOIN LATERAL (
    SELECT at FROM jobs_jobevent WHERE job_id = job.id AND to_state = 'QUEUED' ORDER BY n DESC LIMIT 1) AS entry
  WHERE job.tenant_id = %(tenant)s AND job.state = 'QUEUED' AND job.deleted_at IS NULL"""

SECONDS = ", ".join(
    f"round({name}::numeric, 3)::float8" for name in ("used", "waited", "lost", "opportunistic")
)
HOURS = ", ".join(f"round(({name} / 3600)::numeric, 4)::text" for name in ("used", "waited", "lost"))
"""The figures of USAGE: as numbers, and as a file has them. A month of a large tenant has tens of thousands of rows."""

USAGE = """
WITH attempts AS ({attempts}),
left_queue AS ({left_queue}),
waiting AS ({waiting}),
{pieces},
sums AS (
  SELECT {columns}, sum(used) AS used, sum(waited) AS waited, sum(lost) AS lost,
    sum(opportunistic) AS opportunistic
  FROM (
    SELECT owner_id, slot_type, day, used, waited, lost,
      CASE WHEN opportunistic THEN used ELSE 0 END AS opportunistic FROM piece
    UNION ALL
    SELECT owner_id, slot_type, day, used, waited, lost, opportunistic FROM jobs_usageday
    WHERE tenant_id = %(tenant)s AND day >= %(first)s AND day < %(last)s
  ) AS one GROUP BY {groups}
)
SELECT {shown}, {figures}
FROM sums {joined} WHERE used > 0 OR waited > 0 ORDER BY {order}
"""

FIRST_WAITS = f"""
WITH begun AS (
  SELECT attempt.* FROM jobs_attempt AS attempt WHERE attempt.tenant_id = %(tenant)s AND attempt.held
  UNION ALL SELECT jobs_attempt.* FROM {_OF_DUE.format("jobs_attempt", "TRUE")}
  {{of_edges}}
),
starts AS (
  SELECT owner_id, slot_type, unnest(first_waits) AS waited FROM jobs_usageday
  WHERE tenant_id = %(tenant)s AND day >= %(first)s AND day < %(last)s
  UNION ALL
  SELECT job.owner_id, attempt.slot_type, {FIRST_WAIT}
  FROM begun AS attempt JOIN jobs_job AS job ON job.id = attempt.job_id
  WHERE {FIRST_START} AND attempt.opened_at >= %(start)s AND attempt.opened_at < %(end)s
)
SELECT coalesce(owner.username, ''), coalesce(resource, ''), waits[1], waits[2]
FROM (
  SELECT owner_id, CASE slot_type WHEN 'cpu' THEN 'cpu' ELSE 'gpu' END AS resource,
    percentile_cont(ARRAY[0.5, 0.9]) WITHIN GROUP (ORDER BY waited) AS waits
  FROM starts GROUP BY GROUPING SETS ((1), (2), ())
) AS found LEFT JOIN tenants_user AS owner ON owner.id = found.owner_id
WHERE waits IS NOT NULL
"""

BEGUN_IN_EDGE = f"""
  UNION ALL
  SELECT attempt.* FROM jobs_attempt AS attempt
  WHERE attempt.tenant_id = %(tenant)s AND attempt.opened_at >= %(lo{{0}})s AND attempt.opened_at < %(hi{{0}})s
    AND NOT attempt.held AND {_NOT_DUE.format("attempt", "TRUE")}"""


def first_waits_sql(edges: int) -> str:
    """Rows of username, resource, median and 90th percentile; an empty username and resource: of all of them."""
    return FIRST_WAITS.format(of_edges="".join(BEGUN_IN_EDGE.format(n) for n in range(edges)))


def direct(edges: int) -> dict[str, str]:
    """The parts of USAGE that are read row by row, for this many edges."""
    return {
        "attempts": ATTEMPTS + "".join(ATTEMPTS_OF_EDGE.format(n) for n in range(edges)),
        "left_queue": LEFT_QUEUE + "".join(LEFT_QUEUE_OF_EDGE.format(n) for n in range(edges)),
        "waiting": WAITING,
        "pieces": PIECES,
    }
