"""Start what can start: rows and the cluster's nodes -> Snapshot -> plan() -> starts, those of a tenant together.

One pass at a time over the whole installation (cycle_lease); a request that comes during a pass is not lost, the holder
makes another one. A start that quota, a limit or a newer request refuses is skipped: nothing is admitted. So is one
whose rows are locked, until the next pass, and one on which the platform fails, for a while that grows (quarantine).
"""

from __future__ import annotations

import gc
import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import OperationalError, connection, transaction
from django.db.models import Q
from django.db.models.functions import Now

from gpu_scheduler import budgets, losses, opportunistic
from gpu_scheduler.clusters.base import ClusterError
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Explanation, Node, Plan, Resize, Snapshot, Start, Stop, WaitReason
from gpu_scheduler.policies.base import policy_of
from gpu_scheduler.world import apply
from jobs import clusters, pubsub
from jobs.disk import low_disk
from jobs.failpoints import fp
from jobs.lifecycle import cycle_lease, forecasting, growths, numbers, recording
from jobs.lifecycle.cycle_lease import CycleTakenOver
from jobs.lifecycle.plan_effects import (
    JobLocked,
    NotAdmitted,
    admit_all,
    check_orders,
    compare,
    explain_cluster_busy,
    explain_disk_full,
    explain_fresh,
    explain_pending,
    lock_jobs,
    longest_pending_first,
    quarantine,
    write_orders,
)
from jobs.lifecycle.recording import Source
from jobs.lifecycle.transitions import LOCK_WAIT_MS, wait_shortly
from jobs.models import ClusterNode, Job, NodeChange, PeriodicTask, SchedulerState
from jobs.retries import database_away, retry_on_serialization_failure, rows_locked
from jobs.selectors.kept_rows import KeptRows
from jobs.selectors.nodes import (
    NODE_COLUMNS,
    history_of,
    newest_history,
    node_changes,
    node_row,
    with_avoided,
)
from jobs.selectors.snapshot import database_now, needs_plan, snapshot
from jobs.states import Intent, State

logger = logging.getLogger(__name__)

EVERY_S = 5.0  # the interval of passes, whatever hints were lost
OVERDUE_S = 2.0  # a pass that has been due for so long is made by any worker
LARGE_QUEUE = 300  # with this many waiting jobs, a pass takes noticeable time
PAUSE_FACTOR = 1.0  # after such a pass, pause for this many times the processor time that it took here
PAUSE_MAX_S = 0.5  # a job that is submitted meanwhile waits for so long, too
FRESH = 1000  # jobs that get a new reason to wait in one pass; the next one, which follows at once, finds the others
STARTING_S = 0.5
"""A pass begins no more admissions after so many seconds of them, or after twice the processor time that it took to
plan, if that is longer: jobs submitted meanwhile wait for the next pass, and so do the other starts. What a pass waited
for a processor does not count: on a busy machine, a pass would be the longer the less it gets done."""
SHARED = 16  # at most this many starts share a commit: the rows of a tenant are not locked for long
RETRY_LOCKED = timedelta(seconds=1)

_waiting = KeptRows()
"""Of the passes of this process: one thread at a time makes them."""


def run(*, request: bool = True) -> list[str]:
    """Make passes until one starts something or none is requested any more; the ids of the jobs that were started.

    request: request a pass; False only takes up one that is due. If another worker holds the cycle, it makes ours too.
    Call it again after a start: whatever was requested meanwhile is still due.
    """
    if request:
        request_pass()
    else:
        PeriodicTask.objects.get_or_create(name=PeriodicTask.CYCLE)
    while due_in_s() <= 0:
        with cycle_lease.held() as token:
            if token is None:
                return []
            while _take_request():
                fp("cycle.after_request_taken")
                if started := _pass_or_problem(token):
                    return started
    return []


def run_one() -> list[str]:
    """Make one pass, if one is due and no other worker makes it; the ids of the jobs that were started."""
    PeriodicTask.objects.get_or_create(name=PeriodicTask.CYCLE)
    with cycle_lease.held() as token:
        return _pass_or_problem(token) if token is not None and _take_request() else []


def _pass_or_problem(token: uuid.UUID) -> list[str]:
    """One pass; one that fails leaves its problem for /readyz."""
    try:
        return one_pass(token)
    except CycleTakenOver:
        logger.warning("another worker took over the scheduling cycle")
        return []  # jobs that were started before that are due, so they are taken up
    except Exception as error:
        _waiting.forget()  # the database that is there next may have lost what was read here
        if not database_away(error):
            cycle_lease.note_problem(f"{type(error).__name__}: {error}")
        raise


def has_new() -> bool:
    """A job came to wait that no pass has evaluated yet: its notification may have been lost. One that came before the
    last regular pass is that pass's: a tick does not read thousands that wait."""
    fresh = Q(reason_code__in=(WaitReason.NOT_EVALUATED.value, "resume_requested"))
    came = Q(queued_at__gt=Now() - timedelta(seconds=2 * EVERY_S))
    return Job.objects.filter(fresh, came, state=State.QUEUED, intent=Intent.RUN, deleted_at=None).exists()


def one_pass(token: uuid.UUID) -> list[str]:
    """Plan once for everything that waits and runs; the ids of the jobs that were started. Raises CycleTakenOver."""
    began = time.thread_time()
    try:
        cluster = clusters.current()
        nodes = cluster.nodes()
    except ClusterError as error:  # it does not respond, or its settings are wrong
        explain_cluster_busy(str(error))
        cycle_lease.note_problem(f"{clusters.NO_RESPONSE}: {error}")
        return []
    cycle_lease.extend(token)
    _keep_nodes(cluster.name, nodes)
    fp("cycle.after_nodes_kept")
    if not needs_plan():
        _waiting.forget()
        _note_done()
        return []
    if (disk := low_disk()) is not None:
        explain_disk_full(disk)
        _note_done()
        return []
    broken: dict[str, Exception] = {}
    seen = read_rows(nodes, _waiting, broken)
    for job, unreadable in broken.items():
        quarantine(job, unreadable)
    decided = plan(seen)
    orders: list[Stop | Resize] = [*decided.stops, *decided.resizes]
    check_orders(orders)
    fp("cycle.after_plan")
    cycle_lease.extend(token)
    fresh, moved = compare(decided.waits, _waiting.shown)
    unexplained = _explain_first(fresh[:FRESH])
    fp("cycle.after_explained")
    source = recording.source_of(seen, decided, _waiting.texts)
    starts, left = _admit_all(seen, decided.starts, cluster.name, token, source, time.thread_time() - began)
    started = [start.job for start in starts]
    fp("cycle.after_starts")
    explain_pending(left, seen.now)
    cycle_lease.extend(token)
    write_orders(orders, source, losses.expected(decided, seen))
    fp("cycle.after_orders")
    recording.keep(source, seen, decided)
    fp("cycle.after_recorded")
    numbers.explain(moved)
    growths.keep(decided.growths, seen.running)
    if started or forecasting.lacks_estimates():
        forecasting.request()
    fp("cycle.after_moved_explained")
    cycle_lease.extend(token)
    begun = _begun(seen, decided, starts)
    _keep_policy_state(seen, begun)
    fp("cycle.after_policy_state_kept")
    after = apply(seen, begun)
    _arrange_next(after, waited=len(seen.waiting), is_cut=bool(left) or len(fresh) > FRESH, began=began)
    if unexplained is not None:
        raise unexplained  # what was started is due
    return started


def _arrange_next(after: Snapshot, *, waited: int, is_cut: bool, began: float) -> None:
    """Note that the pass is done, and when the next one follows. after: the snapshot with what was decided. waited:
    jobs that the pass planned for. is_cut: starts or reasons are left to the next one. began: by the thread's clock."""
    _plan_again_at(opportunistic.next_event_at(after))
    _plan_again_at(budgets.next_event_at(after))
    _note_done()
    is_large = waited >= LARGE_QUEUE
    if is_large:
        gc.collect(0)  # what a plan left would else be collected amid a later pass, with that of others
    if is_cut:
        _plan_again_at(database_now())
    elif is_large:
        _pause(min(PAUSE_MAX_S, PAUSE_FACTOR * (time.thread_time() - began)))


def read_rows(nodes: Sequence[Node], kept: KeptRows, broken: dict[str, Exception]) -> Snapshot:
    """What a pass plans with. kept: what the passes of its process have read before."""
    return snapshot(nodes=with_avoided(nodes), now=database_now(), broken=broken, read=kept.read)


def known_nodes() -> dict[str, dict[str, Any]]:
    """The nodes as the last pass kept them, by name."""
    return {row["name"]: row for row in ClusterNode.objects.values("cluster", *NODE_COLUMNS)}


def _explain_first(fresh: Sequence[Explanation]) -> Exception | None:
    """Before the starts, which take longer. A reason that cannot be written keeps no job from its start: the error is
    for the end of the pass."""
    try:
        explain_fresh(fresh)
    except Exception as error:
        if database_away(error):
            raise
        logger.exception("reasons to wait were not written")
        return error
    return None


def _admit_all(
    seen: Snapshot,
    starts: Sequence[Start],
    cluster: str,
    token: uuid.UUID,
    source: Source | None,
    planning_s: float,
) -> tuple[tuple[Start, ...], list[Start]]:
    """The starts that were admitted, in the plan's order, and those that were not begun, as time was up. One whose
    tenant's rows are locked costs that tenant's others their turn, too: each of them would wait as long, and all other
    tenants with it. The time of others is not spent on such waits."""
    tenants = {gang.job: gang.tenant for gang in seen.waiting}
    locked: set[str] = set()
    admitted: set[str] = set()
    left: list[Start] = []
    until = time.monotonic() + max(STARTING_S, 2 * planning_s)
    ordered = longest_pending_first(starts, {gang.job: gang.priority for gang in seen.waiting})
    for first in range(0, len(ordered), SHARED):
        if first and time.monotonic() > until:
            left += ordered[first:]
            break
        shared = [start for start in ordered[first : first + SHARED] if tenants[start.job] not in locked]
        if _admit_together(shared, cluster, token, source):
            admitted |= {start.job for start in shared}
            continue
        for number, together in enumerate(_groups(shared, tenants)):
            if number and time.monotonic() > until:
                left += together
                continue
            tenant = tenants[together[0].job]
            try:
                admitted |= _admit_group(together, cluster, token, source)
            except OperationalError as error:
                if not rows_locked(error):
                    raise
                logger.info("starts skipped: rows are locked", extra={"job": together[0].job})
                locked.add(tenant)
                until += 2 * LOCK_WAIT_MS / 1000  # waited for together, and alone
    if locked:
        _plan_again_at(database_now() + RETRY_LOCKED)
    return tuple(start for start in starts if start.job in admitted), left


def _groups(starts: Sequence[Start], tenants: Mapping[str, str]) -> Iterable[Sequence[Start]]:
    """Starts that did not share a commit, by their tenant: one of another tenant may be the reason. A first group comes
    where its first start is."""
    alike: dict[str, list[Start]] = {}
    for start in starts:
        alike.setdefault(tenants[start.job], []).append(start)
    return alike.values()


def _admit_together(shared: Sequence[Start], cluster: str, token: uuid.UUID, source: Source | None) -> bool:
    """Admit all of these in one transaction. False if anything is wrong with one of them: then none is."""
    if len(shared) < 2:
        return not shared
    try:
        _write_starts(shared, cluster, token, source)
    except CycleTakenOver:
        raise
    except Exception as error:
        if database_away(error) and not rows_locked(error):
            raise
        logger.info("starts did not share a commit", extra={"why": f"{type(error).__name__}: {error}"})
        return False
    fp("admit.after_commit")
    return True


def _admit_group(
    together: Sequence[Start], cluster: str, token: uuid.UUID, source: Source | None
) -> set[str]:
    """The ids of those of one tenant that were admitted: each in a transaction of its own, so that it affects only
    itself. Raises OperationalError where rows are locked."""
    return {start.job for start in together if _admit(start, cluster, token, source)}


def _admit(start: Start, cluster: str, token: uuid.UUID, source: Source | None) -> bool:
    """Give the job its slots and its next attempt, all in one transaction, or leave everything as it is."""
    try:
        _write_starts([start], cluster, token, source)
    except JobLocked:
        _plan_again_at(database_now() + RETRY_LOCKED)
        return False
    except NotAdmitted as refusal:
        logger.info("start skipped", extra={"job": start.job, "why": str(refusal)})
        return False
    except CycleTakenOver:
        raise
    except Exception as error:
        if database_away(error):
            raise
        quarantine(start.job, error)
        return False
    fp("admit.after_commit")
    return True


@retry_on_serialization_failure
def _write_starts(starts: Sequence[Start], cluster: str, token: uuid.UUID, source: Source | None) -> None:
    """All of them or none. Rows are locked in one order: the lease, the jobs, the quotas, the tenants."""
    with transaction.atomic():
        wait_shortly()  # a worker that freezes in here must not keep its locks, the cycle's lease among them
        cycle_lease.extend(token)
        lock_jobs([start.job for start in starts])
        admit_all(starts, cluster, source)
        fp("admit.before_commit")


_history_compared = False


def _keep_nodes(cluster: str, nodes: Sequence[Node]) -> None:
    """Keep the nodes for the pages and REST; only what changed is written.

    The first pass of a process compares with the history itself: workers of an older version, which run beside newer
    ones during an upgrade, keep nodes without writing history.
    """
    global _history_compared
    known = known_nodes()
    shown = {node.name: {"cluster": cluster, **node_row(node)} for node in nodes}
    if known == shown and _history_compared:
        return
    with transaction.atomic():
        ClusterNode.objects.exclude(name__in=shown).delete()
        for name, row in shown.items():
            if known.get(name) != row:
                ClusterNode.objects.update_or_create(name=name, defaults=row | {"changed_at": Now()})
        before = history_of(known) if _history_compared else newest_history()
        NodeChange.objects.bulk_create(node_changes(before, history_of(shown)))
        if known != shown:
            transaction.on_commit(pubsub.cluster_changed, robust=True)
    _history_compared = True


def _begun(seen: Snapshot, decided: Plan, starts: tuple[Start, ...]) -> Plan:
    """The plan with these of its starts. A job whose start was refused, or is left to the next pass, waits on: without
    what the policy knew of it, others would take what was kept for it."""
    refused = {start.job for start in decided.starts} - {start.job for start in starts}
    state = policy_of(seen).state_refused(seen.policy_state, decided.policy_state, refused)
    return replace(decided, starts=starts, policy_state=state)


def _keep_policy_state(seen: Snapshot, decided: Plan) -> None:
    """Store what the policy wants to find in the next snapshot, if that changed."""
    if decided.policy_state == seen.policy_state:
        return
    state = policy_of(seen).dump(decided.policy_state)
    SchedulerState.objects.update_or_create(
        policy=settings.LUTHIER_SCHEDULER_POLICY, defaults={"state": state, "changed_at": Now()}
    )


def request_pass() -> None:
    """Have a pass made now, or when the pause after the last one is over."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobs_periodictask AS task (name, next_at, result) VALUES (%s, clock_timestamp(), '{}')"
            " ON CONFLICT (name) DO UPDATE SET next_at = LEAST(task.next_at,"
            "  GREATEST(clock_timestamp(), (task.result->>'rests_until')::timestamptz))",
            [PeriodicTask.CYCLE],
        )


def _pause(seconds: float) -> None:
    """Make no pass for a while: with thousands of jobs in the queue, a pass per submission would leave no time to
    accept submissions. The ticker runs the pass that is requested meanwhile."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_periodictask SET next_at = GREATEST(next_at, now.at + make_interval(secs => %s)),"
            " result = jsonb_build_object('rests_until', now.at + make_interval(secs => %s))"
            " FROM (SELECT clock_timestamp() AS at) now WHERE name = %s",
            [seconds, seconds, PeriodicTask.CYCLE],
        )


def _plan_again_at(at: datetime | None) -> None:
    """Make the next pass at this time at the latest: then the policy can decide otherwise, without any event."""
    if at is None:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_periodictask SET next_at = GREATEST(%s, (result->>'rests_until')::timestamptz)"
            " WHERE name = %s AND next_at > GREATEST(%s, (result->>'rests_until')::timestamptz)",
            [at, PeriodicTask.CYCLE, at],
        )


def _note_done() -> None:
    PeriodicTask.objects.filter(name=PeriodicTask.CYCLE).update(done_at=Now())
    cycle_lease.note_problem("")


def due_in_s() -> float:
    """Seconds until a pass is due, whether for a request or not; 0 or less if one is."""
    in_s, _ = _next_pass()
    return in_s


def overdue_in_s() -> float:
    """Seconds until a pass is overdue; 0 or less if one is, or if none was ever completed."""
    in_s, has_completed = _next_pass()
    return in_s + OVERDUE_S if has_completed else 0.0


def _next_pass() -> tuple[float, bool]:
    """In how many seconds the next pass is due, and whether one was ever completed."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM next_at - clock_timestamp())::float8, done_at IS NOT NULL"
            " FROM jobs_periodictask WHERE name = %s",
            [PeriodicTask.CYCLE],
        )
        return cursor.fetchone() or (0.0, False)


def _take_request() -> bool:
    """Take up the requests made until now; a later one leads to another pass."""
    return PeriodicTask.claim(PeriodicTask.CYCLE, EVERY_S)
