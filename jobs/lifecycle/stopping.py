"""STOPPING, the one way out of a running job: ask the learners, then force them, then go where the reason leads. Pure.

Graceful (halt, order, time limit): every answer to the learners carries the intent, and their launchers escalate by
themselves (SIGTERM, SIGKILL). Forced at once: cancel and failures. Times are seconds since STOPPING began.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.backoff import doubling_s
from gpu_scheduler.clusters.base import EndReason
from jobs.humanize import duration
from jobs.lifecycle.facts import JobObservation, LearnerObservation, Move, Order, Reason, ended_without_code
from jobs.states import AFTER_STOPPING, BY_ORDER, OWN_FAILURES, SILENT_S, Intent, Phase, State, StopReason

GRACEFUL = BY_ORDER | {StopReason.HALT_REQUESTED, StopReason.TIME_LIMIT, StopReason.PLATFORM_STOPPED}
ACKNOWLEDGED_S = 10.0  # a learner that has not acknowledged by then is stopped through the cluster
CANCEL_GRACE_S, FAILED_GRACE_S, UNSTARTED_GRACE_S = 10.0, 30.0, 5.0
SLACK_S = 15.0  # between the launcher's last escalation and a stop through the cluster
SHIPPING_S = 120.0  # for the rest of the log, after an end that saved nothing
STORING_S = 3600.0  # for the checkpoints and files that a failed program left
DELIVERY_S = 24 * 3600.0  # as long as a learner of a closed attempt may deliver (jobs.tokens)
UPLOAD_SILENCE_S = 3600.0  # for uploads of silent learners: an outage of the platform must not lose them
FREE_LOSSES = 3
"""Attempts in a row whose agents died within QUICK_LOSS_S of the program's start that are blamed on the machine. The
next one counts as the program's own failure: a program can kill its agents again and again."""
QUICK_LOSS_S = 60.0
PREPARE_TRIES = 8
"""Attempts in a row that a node may fail to prepare before the job fails: about five minutes with the back-off."""
BACK_OFF_FROM = (
    2  # the next attempt follows the first early end at once, and backs off after further ones in a row
)
BACK_OFF_S, BACK_OFF_MAX_S = 5.0, 300.0
GOOD_RUN_S = 600.0  # an attempt that ran this long resets the back-off
NODE_LOST_S = 20.0  # a node that never answers again cannot show its learners gone


ENDED_WORDS = {
    StopReason.HALT_REQUESTED: "Halted.",
    StopReason.TIME_LIMIT: "Time limit reached.",
}
"""What people read afterwards; other reasons keep the sentence with which the stop began."""
TIME_IS_UP = " Its time limit is used up."
ORDER_MESSAGES = {
    StopReason.PREEMPTED: ("Preempting: another job needs its devices", "Preempted for another job"),
    StopReason.RECLAIMED: (
        "Preempting: another tenant reclaims devices that it lent",
        "Preempted: another tenant reclaimed devices that it had lent",
    ),
    StopReason.MOVED: (
        "Moving: a larger job needs its place, and it can start again elsewhere",
        "Stopped to start again elsewhere: a larger job needed its place",
    ),
    StopReason.BUDGET_EXHAUSTED: (
        "Stopping to start again later",
        "Stopped to start again later",
    ),
    StopReason.RESCALED: ("Rescaling", "Stopped for rescaling"),
}
"""Of each order: what people read while it is carried out, and afterwards. Guests read it too, also as a part of later
sentences: nothing in it is about the tenant's limits (`jobs.selectors.redaction.FOR_MEMBERS`)."""


@dataclass(frozen=True, slots=True)
class Step:
    """Ask the cluster to stop the gang with this grace in seconds, or to remove it, or wait."""

    stop_grace_s: float | None = None
    remove: bool = False


def checkpoints_remain(job: JobObservation) -> str:
    """The end of a sentence about a canceled job: nothing is promised that is not there."""
    return "; its checkpoints remain" if job.has_checkpoint else ""


def ordered(order: Order, job: JobObservation) -> str:
    """What people read while an order is carried out."""
    size = f" {_change(job, order)}" if order.learners is not None else ""
    then = "stays halted" if job.intent == Intent.HALT else "queues again"
    words = f"Its program is asked to save; then it {then}." if job.launched else f"It {then}."
    return f"{ORDER_MESSAGES[order.reason][0]}{size}. {words}"


def is_graceful(job: JobObservation) -> bool:
    """Its learners may save first, and may still finish: finishing wins over halting, not over a cancel or failure."""
    return job.intent != Intent.CANCEL and StopReason(job.stop_reason) in GRACEFUL


def next_step(job: JobObservation) -> Step:
    """What to do about a gang that is still there."""
    if job.none_active or _waited_too_long(job):
        return Step(remove=True)
    running = [learner for learner in job.learners if not (learner.exited or learner.processes_ended)]
    if not running:
        return Step()  # the programs are gone, what they left is being shipped
    if not is_graceful(job):
        return Step(stop_grace_s=_forced_grace_s(job))
    if not any(learner.reached(Phase.PROCESSING) for learner in job.learners):
        return Step(stop_grace_s=UNSTARTED_GRACE_S)
    if job.stop_s > 2 * job.grace_s + SLACK_S:
        return Step(stop_grace_s=0)
    if job.stop_s > ACKNOWLEDGED_S and not all(_acknowledged(learner, job) for learner in running):
        return Step(stop_grace_s=job.grace_s)
    return Step()


def _waited_too_long(job: JobObservation) -> bool:
    """Waiting longer is useless: a dead node, or a stop with its uploads that took far too long."""
    active = job.active
    if all(learner.unreachable for learner in active) and job.stop_s > NODE_LOST_S:
        return True
    if not is_graceful(job):
        return job.stop_s > _forced_grace_s(job) + (STORING_S if _still_stores(job) else SHIPPING_S)
    if job.stop_s <= 3 * job.grace_s + SHIPPING_S:
        return False
    return not all(learner.exited for learner in active) or fell_silent(job) or stopped_storing(job)


def _still_stores(job: JobObservation) -> bool:
    """A program that failed has ended, and its files are being uploaded: the next attempt resumes from them."""
    stores = any(learner.exited and learner.reached(Phase.STORING) for learner in job.active)
    return stores and job.intent != Intent.CANCEL


def cut_off(job: JobObservation) -> Reason | None:
    """What people read if the gang is removed now; None if all that its programs left is stored."""
    waiting = [
        learner.rank for learner in job.learners if learner.reached(Phase.STORING) and not learner.delivered
    ]
    if not waiting:
        return None
    who = f"Learner {waiting[0]} was" if len(waiting) == 1 else f"{len(waiting):,} learners were"
    message = (
        f"{who} removed {duration(job.stop_s)} after the stop began, before everything was stored. What had not arrived"
        " of checkpoints, results and log is lost; results of an earlier end remain"
    )
    return Reason("results_cut_off", message, {"learners": len(waiting), "seconds": round(job.stop_s, 1)})


def fell_silent(job: JobObservation) -> bool:
    """No learner that still has something to upload has sent a heartbeat for long."""
    return all(learner.silent_s is None or learner.silent_s > UPLOAD_SILENCE_S for learner in job.active)


def stopped_storing(job: JobObservation) -> bool:
    """Every learner that still has something to upload sends heartbeats, and nothing else that could be stored, for
    longer than allowed. One that advances, however slowly, keeps all of them: some wait for the parts of others."""
    waiting = [learner for learner in job.active if not learner.delivered]
    return bool(waiting) and all(_stalls(learner, job.stall_limit_s) for learner in waiting)


def _stalls(learner: LearnerObservation, limit_s: float) -> bool:
    in_contact = learner.silent_s is not None and learner.silent_s <= SILENT_S
    return learner.exited and in_contact and learner.stalled_s is not None and learner.stalled_s > limit_s


def cannot_deliver(job: JobObservation) -> bool:
    """No learner that still has something to upload has sent a heartbeat for DELIVERY_S: after that, their secrets
    are refused, so nothing more can arrive."""
    return all(learner.silent_s is not None and learner.silent_s > DELIVERY_S for learner in job.active)


def _forced_grace_s(job: JobObservation) -> float:
    limit_s = CANCEL_GRACE_S if job.intent == Intent.CANCEL else FAILED_GRACE_S
    return min(job.grace_s, limit_s)


def _acknowledged(learner: LearnerObservation, job: JobObservation) -> bool:
    """The learner acknowledged this generation's halt. A stop without a new intent has no generation of its own; there,
    a recent heartbeat is enough."""
    if job.stop_reason == StopReason.HALT_REQUESTED:
        return learner.gen_seen >= job.intent_gen
    return learner.silent_s is not None and learner.silent_s < ACKNOWLEDGED_S


def ending(job: JobObservation) -> Move:
    """Where the job goes now that its gang is gone."""
    reason = StopReason(job.stop_reason)
    if job.intent == Intent.CANCEL:
        return Move(State.CANCELED, Reason("cancel_requested", f"Canceled{checkpoints_remain(job)}."))
    agents_lost = _agents_died_early(job)
    kills_them = agents_lost and job.agent_losses >= FREE_LOSSES and job.intent == Intent.RUN
    if reason in OWN_FAILURES and job.worked_with is not None and job.intent == Intent.RUN:
        return _back_to_what_worked(job, job.worked_with)
    charged = reason in OWN_FAILURES or kills_them
    if charged and job.restarts_used >= job.max_restarts:
        return Move(State.FAILED, _restarts_used_up(job))
    target = AFTER_STOPPING[reason]
    if _time_is_up(job, target):
        words = ENDED_WORDS.get(reason, job.reason.message) + TIME_IS_UP + _clone_hint(job)
        lasting = {name: value for name, value in job.reason.numbers.items() if name != "since"}
        return Move(State.FAILED, Reason("time_limit", words, lasting))  # no outage that is over
    if reason in ENDED_WORDS:
        numbers = (
            job.reason.numbers if job.reason.code == reason else {}
        )  # not those of an outage of the cluster
        words = ENDED_WORDS[reason] + (_clone_hint(job) if target == State.FAILED else "") + _of_lost(job)
        return Move(target, Reason(reason.value, words, numbers))
    if target == State.QUEUED and job.intent == Intent.HALT:
        before = ORDER_MESSAGES[reason][1] + "." if reason in BY_ORDER else job.reason.message
        return Move(State.HALTED, Reason("halt_requested", f"Halted. Before that: {before}"))
    if target != State.QUEUED:
        return Move(target, job.reason)
    if job.corrupt_checkpoints and not job.has_checkpoint:
        return Move(
            State.FAILED,
            Reason(
                "no_valid_checkpoint",
                f"None of its {job.corrupt_checkpoints} checkpoints can be read back, so it cannot be resumed.",
                {"corrupt": job.corrupt_checkpoints},
            ),
        )
    if reason in BY_ORDER:
        return _queued_by_order(job, reason)
    if reason is StopReason.PLATFORM_STOPPED:  # nothing that happened to the job: no restart, no back-off
        words = "Platform stopped. Continues automatically; doesn't count against max_restarts."
        return Move(State.QUEUED, Reason(reason.value, words, job.reason.numbers), early_ends=job.early_ends)
    if job.reason.code == EndReason.NOT_PREPARED and job.not_prepared + 1 >= PREPARE_TRIES:
        words = f"{job.reason.message} Tried {job.not_prepared + 1} times in a row."
        return Move(State.FAILED, Reason(EndReason.NOT_PREPARED.value, words, job.reason.numbers))
    used = job.restarts_used + 1 if charged else job.restarts_used
    numbers = {**job.reason.numbers, "restarts_used": used, "max_restarts": job.max_restarts}
    early_ends = _early_ends(job)
    wait_s = back_off_s(early_ends)
    words = f"Restart {used} of {job.max_restarts}" if charged else "Restarts automatically"
    if wait_s:
        words += f" after {duration(wait_s)}"
        numbers["wait_s"] = wait_s
    free = "" if charged else "; doesn't count against max_restarts"
    message = f"{job.reason.message} {words}{free}."
    return Move(
        State.QUEUED,
        Reason(job.reason.code, message, numbers),
        charged=charged,
        early_ends=early_ends,
        wait_s=wait_s,
        agents_lost=agents_lost,
    )


def _back_to_what_worked(job: JobObservation, learners: int) -> Move:
    """The platform chose the size with which the program failed at once, so that costs no restart. It is not chosen
    again (`measuring`)."""
    words = (
        f"{job.reason.message} With {_learners(len(job.learners))} it had made no step. It continues with"
        f" {_learners(learners)}, as before, and gets fewer than {len(job.learners)} from now on;"
        " this doesn't count against max_restarts."
    )
    reason = Reason(job.reason.code, words, {**job.reason.numbers, "learners": learners})
    return Move(State.QUEUED, reason, early_ends=_early_ends(job), learners=learners)


def _learners(count: int) -> str:
    return f"{count} learner{'' if count == 1 else 's'}"


def _queued_by_order(job: JobObservation, reason: StopReason) -> Move:
    """Back to its old place in the queue, at no charge. A stop order that came while it was being rescaled replaces the
    resize; a request of its owner voids it."""
    order = job.pending_order
    if job.stop_order is not None:
        reason = job.stop_order.reason
    learners = order.learners if order is not None else None
    resized = order if learners is not None else None
    words = f"Rescaled {_change(job, resized)}" if resized is not None else ORDER_MESSAGES[reason][1]
    text = f"{words}. It keeps its place in the queue; this doesn't count against max_restarts."
    numbers: dict[str, object] = {"restarts_used": job.restarts_used, "max_restarts": job.max_restarts}
    if order is not None:
        numbers |= order.numbers
    return Move(State.QUEUED, Reason(reason.value, text, numbers), learners=learners)


def _change(job: JobObservation, order: Order) -> str:
    """A resize in words, with its reason: gangs grow into free devices only (`gpu_scheduler.policies.resizing`)."""
    before, after = len(job.learners), order.learners or 0
    why = "into free devices" if after > before else "to leave devices to other jobs"
    if order.leaves:
        one = len(order.leaves) == 1
        names = ", ".join(order.leaves)
        why = f"off {'node' if one else 'nodes'} {names}, which {'takes' if one else 'take'} no more learners"
    size = f"from {before} to" if after != before else "with the same"
    return f"{size} {_learners(after)} {why}"


def _early_ends(job: JobObservation) -> int:
    return 1 if job.ran_s > GOOD_RUN_S else job.early_ends + 1


def back_off_s(early_ends: int) -> float:
    """Seconds that the next attempt waits after this number of early ends in a row, whatever their cause."""
    return doubling_s(early_ends, free=BACK_OFF_FROM - 1, first_s=BACK_OFF_S, most_s=BACK_OFF_MAX_S)


def _time_is_up(job: JobObservation, target: State) -> bool:
    """It would queue only to be stopped at once. A requested halt still keeps it; a resume that came while it halted
    finds no time left."""
    goes_on = target in {State.QUEUED, State.HALTED} and job.intent == Intent.RUN
    return goes_on and job.time_left_s is not None and job.time_left_s <= 0


def _clone_hint(job: JobObservation) -> str:
    """What to do about a time limit that is used up."""
    start = "; the clone can start from its newest checkpoint" if job.has_checkpoint else ""
    return f" Clone it with a larger time_limit{start}."


def _of_lost(job: JobObservation) -> str:
    """Why steps may be lost although the halt was carried out: a launcher was gone and reported nothing."""
    lost = [learner for learner in job.learners if learner.exited and learner.exit_code is None]
    return f" {ended_without_code(lost[0])}" if lost else ""


def _agents_died_early(job: JobObservation) -> bool:
    lost = job.reason.numbers.get("failure_class") in (EndReason.LAUNCHER_LOST, EndReason.SHIPPER_FAILED)
    could = any(learner.reached(Phase.READY) for learner in job.learners)  # before that no program runs
    return lost and could and job.ran_s - job.stop_s < QUICK_LOSS_S


def _restarts_used_up(job: JobObservation) -> Reason:
    numbers = {**job.reason.numbers, "restarts_used": job.restarts_used, "max_restarts": job.max_restarts}
    many = job.max_restarts > 1
    words = f" {'All' if many else 'Its'} {job.max_restarts} restart{'s are' if many else ' is'} used up."
    words = words if job.max_restarts else ""
    return Reason(job.reason.code, job.reason.message + words, numbers)
