"""Rules over the whole database that hold after any crash. Each is one query for what breaks it.

Read only, and never repaired silently: a broken rule is a fault of the platform that a person must see. Run by
`manage.py invariants` on a live installation, and after every step of the lifecycle's state-machine tests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from django.db import connection, transaction

from gpu_scheduler.clusters.base import GangReport, gang_name
from jobs.models import POINT_BYTES, Attempt
from jobs.states import BY_ORDER, HOLDS_GPUS
from jobs.storage import COUNTED
from tenants.audit_chain import BROKEN
from tenants.retention import Kind

Seen = TypeVar("Seen")

SHOWN = 20
ORDERED = ", ".join(f"'{reason}'" for reason in sorted(BY_ORDER))
HOLDING = ", ".join(f"'{state}'" for state in sorted(HOLDS_GPUS))


@dataclass(frozen=True, slots=True)
class Invariant:
    """sql returns one row of text per violation; no row means that the rule holds."""

    name: str
    rule: str
    sql: str


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule, and what breaks it."""

    name: str
    rule: str
    found: tuple[str, ...]


def _removed(job: str, kind: Kind) -> str:
    """SQL: whether retention removed this kind of a job's data, or is at it."""
    return f"EXISTS (SELECT 1 FROM jobs_removal r WHERE r.job_id = {job} AND r.kind = '{kind}')"


RULES = (
    Invariant(
        "QuotaSum",
        "What a tenant uses of a type is the sum of what its live attempts hold, without opportunistic ones.",
        """SELECT format('tenant %s, %s: used %s, held %s', coalesce(q.tenant_id, h.tenant_id),
             coalesce(q.gpu_type, h.slot_type), coalesce(q.used, 0), coalesce(h.held, 0))
           FROM tenants_quota q FULL JOIN (SELECT tenant_id, slot_type, sum(slots * learners) AS held FROM jobs_attempt
             WHERE held AND NOT opportunistic GROUP BY 1, 2) h ON h.tenant_id = q.tenant_id AND h.slot_type = q.gpu_type
           WHERE coalesce(q.used, 0) <> coalesce(h.held, 0)""",
    ),
    Invariant(
        "JobsSum",
        "A tenant's count of live jobs is the number of its live attempts, without opportunistic ones.",
        """SELECT format('tenant %s: counted %s, live %s', t.slug, t.jobs_used, count(a.id)) FROM tenants_tenant t
           LEFT JOIN jobs_attempt a ON a.tenant_id = t.id AND a.held AND NOT a.opportunistic
           GROUP BY t.id HAVING t.jobs_used <> count(a.id)""",
    ),
    Invariant(
        "StorageSum",
        "The bytes that are counted for a tenant are those of its log lines, metric points, files and specs.",
        f"""SELECT format('tenant %s, %s: counted %s, stored %s', coalesce(c.tenant_id, s.tenant_id),
             coalesce(c.kind, s.kind), coalesce(c.bytes, 0), coalesce(s.bytes, 0))
           FROM ({COUNTED.format(which="true")}) c
           FULL JOIN (
             SELECT tenant_id, 'logs' AS kind, sum(len) AS bytes FROM jobs_logchunk WHERE NOT tombstone GROUP BY 1
             UNION ALL SELECT tenant_id, 'metrics', count(*) * {POINT_BYTES} FROM jobs_metricpoint GROUP BY 1
             UNION ALL SELECT tenant_id, kind, sum(bytes) FROM (
               SELECT tenant_id, kind, size AS bytes FROM jobs_blob
               UNION ALL SELECT tenant_id, 'code', jobs_spec_bytes(spec, spec_text, packages) FROM jobs_job) f
             GROUP BY 1, 2) s
           ON s.tenant_id = c.tenant_id AND s.kind = c.kind WHERE coalesce(c.bytes, 0) <> coalesce(s.bytes, 0)""",
    ),
    Invariant(
        "PromiseSum",
        "What is promised to a job of the disk is what its files have still to fill.",
        """SELECT format('job %s: promised %s in %s files, to come %s in %s', coalesce(p.job_id, s.job),
             p.bytes, p.files, s.bytes, s.files)
           FROM jobs_promise p
           FULL JOIN (
             SELECT requested_from->>0 AS job, sum(size - received) AS bytes, count(*) AS files FROM jobs_blob
             WHERE NOT verified AND requested_from->>0 IS NOT NULL GROUP BY 1) s ON s.job = p.job_id
           WHERE (p.bytes, p.files) IS DISTINCT FROM (s.bytes, s.files)""",
    ),
    Invariant(
        "Guards",
        "The triggers that refuse use above a limit, illegal moves and a changed history are in place.",
        """SELECT format('%s on %s is missing or off', g.name, g.place) FROM (VALUES
             ('quota_guard', 'tenants_quota'), ('jobs_guard', 'tenants_tenant'), ('append_only', 'tenants_quotachange'),
             ('append_only', 'tenants_projectchange'),
             ('append_only', 'tenants_auditentry'), ('append_only', 'tenants_auditseal'),
             ('actor_is_gone', 'tenants_auditentry'),
             ('legal_move', 'jobs_job'), ('append_only', 'jobs_jobevent'),
             ('closed', 'jobs_attempt'), ('limits_guard', 'jobs_attempt'),
             ('project_guard', 'jobs_attempt'), ('opportunistic_guard', 'jobs_attempt')) AS g(name, place)
           WHERE NOT EXISTS (SELECT 1 FROM pg_trigger t WHERE t.tgname = g.name AND t.tgrelid = g.place::regclass
             AND t.tgenabled = 'O')""",
    ),
    Invariant(
        "AuditChain",
        "No entry of the audit log was changed, and none was removed but by its retention rule.",
        BROKEN,
    ),
    Invariant(
        "HeldIffLive",
        "A job holds slots exactly while it is deployed: one live attempt, its newest.",
        f"""SELECT format('job %s is %s with live attempts %s, newest %s', j.id, j.state, array_agg(a.n), j.attempt)
            FROM jobs_job j LEFT JOIN jobs_attempt a ON a.job_id = j.id AND a.held
            GROUP BY j.id HAVING (j.state IN ({HOLDING})) <> (count(a.id) = 1)
              OR (count(a.id) > 0 AND max(a.n) <> j.attempt)""",
    ),
    Invariant(
        "AttemptDense",
        "Attempts of a job are numbered 1, 2, 3 … up to its newest.",
        """SELECT format('job %s at attempt %s has %s up to %s', j.id, j.attempt, count(a.id), max(a.n))
           FROM jobs_job j LEFT JOIN jobs_attempt a ON a.job_id = j.id
           GROUP BY j.id HAVING count(a.id) <> j.attempt OR coalesce(max(a.n), 0) <> j.attempt""",
    ),
    Invariant(
        "GangWhole",
        "Every attempt has all its learners, ranks 0, 1, 2 …",
        """SELECT format('attempt %s of job %s: %s of %s learners', a.n, a.job_id, count(l.id), a.learners)
           FROM jobs_attempt a LEFT JOIN jobs_learner l ON l.job_id = a.job_id AND l.attempt = a.n
           GROUP BY a.id HAVING count(l.id) <> a.learners OR max(l.rank) <> a.learners - 1""",
    ),
    Invariant(
        "SeqDense",
        "Events of a job are numbered without a gap, until retention removes some.",
        f"""SELECT format('job %s: %s events up to %s, counter %s', j.id, count(e.id), max(e.n), j.event_seq)
           FROM jobs_job j LEFT JOIN jobs_jobevent e ON e.job_id = j.id GROUP BY j.id
           HAVING (count(e.id) <> j.event_seq AND NOT {_removed("j.id", Kind.EVENTS)})
             OR coalesce(max(e.n), 0) <> j.event_seq""",
    ),
    Invariant(
        "Legal",
        "Every move in the history starts where the last one ended, and is a legal one; nothing leaves a final state.",
        f"""SELECT format('job %s, event %s: %s to %s after %s', job_id, n, from_state, to_state, before) FROM (
             SELECT job_id, n, from_state, to_state, lag(to_state) OVER (PARTITION BY job_id ORDER BY n) AS before
             FROM jobs_jobevent e WHERE to_state <> '' AND NOT {_removed("e.job_id", Kind.EVENTS)}) moves
           WHERE before IS NOT NULL AND (before <> from_state OR NOT EXISTS (SELECT 1 FROM jobs_transition t
             WHERE t.from_state = moves.from_state AND t.to_state = moves.to_state))""",
    ),
    Invariant(
        "Fold",
        "The history gives the same state, intent and generation as the job's row.",
        """SELECT format('job %s is %s %s/%s, its history says %s %s/%s', j.id, j.state, j.intent, j.intent_gen,
             s.to_state, w.numbers->>'intent', w.numbers->>'generation')
           FROM jobs_job j
           LEFT JOIN LATERAL (SELECT to_state FROM jobs_jobevent e WHERE e.job_id = j.id AND e.to_state <> ''
             ORDER BY n DESC LIMIT 1) s ON true
           LEFT JOIN LATERAL (SELECT numbers FROM jobs_jobevent e WHERE e.job_id = j.id AND e.numbers ? 'generation'
             ORDER BY n DESC LIMIT 1) w ON true
           WHERE s.to_state IS DISTINCT FROM j.state OR coalesce(w.numbers->>'intent', j.intent) <> j.intent
             OR coalesce((w.numbers->>'generation')::bigint, j.intent_gen) <> j.intent_gen""",
    ),
    Invariant(
        "NotForgotten",
        "A job that is not settled has a time at which it is due; a settled one has ended or is halted.",
        """SELECT format('job %s, %s %s, settled %s, next %s', id, state, intent, settled, next_reconcile_at)
           FROM jobs_job WHERE (NOT settled AND next_reconcile_at IS NULL) OR (settled AND NOT (
             state IN ('COMPLETED', 'FAILED', 'CANCELED') OR (state = 'HALTED' AND intent = 'HALT')))""",
    ),
    Invariant(
        "OrderLive",
        "Only a job that runs, or that stops by order, has an order of the scheduler.",
        f"""SELECT format('job %s, %s %s: %s', id, state, stop_reason, order_reason) FROM jobs_job
            WHERE order_reason <> '' AND NOT (state IN ('DEPLOYING', 'DOWNLOADING', 'PROCESSING')
              OR (state = 'STOPPING' AND stop_reason IN ({ORDERED})))""",
    ),
    Invariant(
        "HaltTruth",
        "A halted job has the receipt of its halt.",
        "SELECT format('job %s', id) FROM jobs_job WHERE state = 'HALTED' AND last_halt IS NULL",
    ),
    Invariant(
        "RetryBound",
        "No job used more restarts than it may.",
        """SELECT format('job %s: %s of %s', id, restarts_used, max_restarts) FROM jobs_job
           WHERE restarts_used > max_restarts""",
    ),
    Invariant(
        "ResumeFrom",
        "An attempt resumes from a checkpoint of its own job, made before it.",
        """SELECT format('attempt %s of job %s from checkpoint %s of job %s', a.n, a.job_id, c.n, c.job_id)
           FROM jobs_attempt a JOIN jobs_checkpoint c ON c.id = a.resume_from_id
           WHERE c.job_id <> a.job_id OR c.attempt >= a.n""",
    ),
    Invariant(
        "CkptValid",
        "Every byte of a committed checkpoint was hashed by the server.",
        """SELECT format('checkpoint %s of job %s: %s', c.n, c.job_id, f.path) FROM jobs_checkpoint c
           JOIN jobs_checkpointfile f ON f.checkpoint_id = c.id JOIN jobs_blob b ON b.id = f.blob_id
           WHERE c.state = 'COMMITTED' AND NOT b.verified""",
    ),
    Invariant(
        "CkptUnfinished",
        "No checkpoint of an attempt that ended before the last run of `tidy` is still being uploaded.",
        """SELECT format('checkpoint %s of job %s, attempt %s', c.n, c.job_id, c.attempt) FROM jobs_checkpoint c
           JOIN jobs_attempt a ON a.job_id = c.job_id AND a.n = c.attempt
           JOIN jobs_periodictask p ON p.name = 'tidy' AND p.result ? 'given_up' AND p.result->>'more' = 'false'
           WHERE c.state = 'UPLOADING' AND a.closed_at < p.done_at - interval '1 hour'""",
    ),
    Invariant(
        "CkptReleased",
        "A checkpoint that is no longer kept has no files, unless retention is at it.",
        """SELECT format('checkpoint %s of job %s: %s', c.n, c.job_id, f.path) FROM jobs_checkpoint c
           JOIN jobs_checkpointfile f ON f.checkpoint_id = c.id WHERE c.state = 'DROPPED' AND NOT EXISTS (
             SELECT FROM jobs_removal r WHERE r.job_id = c.job_id AND r.kind = 'checkpoints' AND r.done_at IS NULL)""",
    ),
    Invariant(
        "GapFree",
        "The chunks of a log follow each other without gap or overlap up to the learner's cursor, until it is removed.",
        f"""SELECT format('job %s, attempt %s, learner %s: %s chunks end at %s, cursor %s', l.job_id, l.attempt, l.rank,
             count(c.offset), max(c.offset + c.len), l.log_bytes)
           FROM jobs_learner l JOIN jobs_job j ON j.id = l.job_id AND j.deleted_at IS NULL
             AND NOT {_removed("j.id", Kind.LOGS)}
           LEFT JOIN jobs_logchunk c ON (c.job_id, c.attempt, c.rank) = (l.job_id, l.attempt, l.rank)
           GROUP BY l.id HAVING coalesce(sum(c.len), 0) <> l.log_bytes
             OR coalesce(max(c.offset + c.len), 0) <> l.log_bytes OR coalesce(min(c.offset), 0) <> 0""",
    ),
    Invariant(
        "TenantClosed",
        "Everything of a job belongs to the job's tenant.",
        " UNION ALL ".join(
            f"""SELECT format('{table} of job %s', x.job_id) FROM {table} x JOIN jobs_job j ON j.id = x.job_id
                WHERE x.tenant_id <> j.tenant_id"""
            for table in (
                "jobs_attempt",
                "jobs_learner",
                "jobs_jobevent",
                "jobs_checkpoint",
                "jobs_resultfile",
                "jobs_logchunk",
                "jobs_logindex",
                "jobs_metricpoint",
                "jobs_metricrollup",
            )
        ),
    ),
)


ALL = " UNION ALL ".join(
    f"(SELECT '{rule.name}', line FROM ({rule.sql}) AS broken(line) LIMIT {SHOWN})" for rule in RULES
)


def violations() -> list[Violation]:
    """Every rule that does not hold, with at most SHOWN examples each, of one database snapshot."""
    fresh = not connection.in_atomic_block
    with transaction.atomic(), connection.cursor() as cursor:
        if fresh:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cursor.execute("SET LOCAL statement_timeout = '5min'")
        cursor.execute(ALL)
        rows = cursor.fetchall()
    broken = defaultdict(list)
    for name, line in rows:
        broken[name].append(line)
    return [
        Violation(rule.name, rule.rule, tuple(broken[rule.name])) for rule in RULES if rule.name in broken
    ]


def unowned(gangs: Mapping[str, Seen]) -> dict[str, Seen]:
    """The gangs, by name, that no live attempt owns. gangs must have been observed before this call, not after."""
    owned = {gang_name(job, n) for job, n in Attempt.objects.filter(held=True).values_list("job_id", "n")}
    return {name: gang for name, gang in gangs.items() if name not in owned}


def orphans(gangs: Mapping[str, GangReport]) -> list[Violation]:
    """Violations by gangs that are ``unowned``."""
    found = tuple(sorted(unowned(gangs)))[:SHOWN]
    return (
        [Violation("NoOrphan", "Every gang on the cluster belongs to a live attempt.", found)]
        if found
        else []
    )
