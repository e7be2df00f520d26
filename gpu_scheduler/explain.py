"""Why a job does not start, in the words of its owner, with the arithmetic.

Other tenants appear as numbers only. The codes are those of ``WaitReason``; the checks are listed in the order
of the why-it-waits panel and stop at the first that fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu_scheduler.model import CPU_TYPE, Gang, WaitReason
from gpu_scheduler.placement import Pool
from gpu_scheduler.quota import Ledger

FIX_NEEDED = frozenset({WaitReason.NO_MATCHING_POOL, WaitReason.EXCEEDS_MAX_QUOTA})
"""The job can never start as it is: its owner or an admin must change something. It stands in no line."""

FOR_NODES = frozenset({WaitReason.FAIR_SHARE, WaitReason.INSUFFICIENT_CAPACITY, WaitReason.GANG_FRAGMENTED})
"""What the use of the cluster by others causes, or by the tenant's own jobs if ``own_head``."""

CHECKS: dict[str, frozenset[WaitReason]] = {
    "pool": frozenset({WaitReason.NO_MATCHING_POOL}),
    "max_quota": frozenset({WaitReason.EXCEEDS_MAX_QUOTA}),
    "tenant": frozenset({WaitReason.TENANT_SUSPENDED}),
    "quota": frozenset({WaitReason.QUOTA_GPUS}),
    "jobs": frozenset({WaitReason.QUOTA_JOBS}),
    "fair_share": frozenset({WaitReason.FAIR_SHARE}),
    "capacity": frozenset({WaitReason.INSUFFICIENT_CAPACITY}),
    "gang": frozenset({WaitReason.GANG_FRAGMENTED}),
}
"""What is checked for every job, in this order, and which reason each one gives when it fails."""

PROGRESS = {code: index for index, codes in enumerate(CHECKS.values()) for code in codes}
"""How far a job came before it had to wait: of several types, the furthest is the one to tell about."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stands in a gang's way on one type. own_head: the slots are kept for the tenant's own first job."""

    gang: Gang
    slot_type: str
    code: WaitReason
    own_head: bool = False

    @property
    def asked(self) -> int:
        return self.gang.learners.min * self.gang.slots

    @property
    def for_nodes(self) -> bool:
        """Say whether it waits for the cluster, not for its own tenant's limits."""
        return self.code in FOR_NODES and not self.own_head


def facts(verdict: Verdict, pool: Pool | None, ledger: Ledger) -> dict[str, Any]:
    """The numbers behind a verdict, as plain JSON."""
    gang = verdict.gang
    account = ledger.account(gang.tenant, verdict.slot_type)
    jobs = ledger.jobs(gang.tenant)
    found: dict[str, Any] = {
        "slot_type": verdict.slot_type,
        "learners": gang.learners.min,
        "slots": gang.slots,
        "asked": verdict.asked,
        "limit": account.limit,
        "used": account.used,
        "jobs_limit": jobs.limit,
        "jobs_used": jobs.used,
    }
    if pool is not None:
        found |= {
            "free": pool.free.total,
            "total": pool.total,
            "kept": pool.kept_free(),
            "largest_block": pool.free.largest,
            "largest_node": pool.largest_node,
            "learners_fitting": pool.free.capacity(gang.slots),
            "nodes_down": pool.nodes_down,
        }
    return found


def message(verdict: Verdict, numbers: dict[str, Any]) -> str:
    """One sentence that names the one thing in the way, and the numbers."""
    return _MESSAGES[verdict.code](verdict, numbers)


def checks(verdict: Verdict, numbers: dict[str, Any]) -> list[dict[str, Any]]:
    """Every check in order: ok True or False, None for those not reached; numbers where the check has some."""
    failed_at = PROGRESS[verdict.code]
    listed = []
    for index, name in enumerate(CHECKS):
        ok = True if index < failed_at else False if index == failed_at else None
        used, limit, asked = _meter(name, numbers)
        listed.append(
            {
                "check": name,
                "ok": ok,
                "used": used,
                "limit": limit,
                "asked": asked,
                "text": message(verdict, numbers) if ok is False else _TITLES[name],
            }
        )
    return listed


_TITLES = {
    "pool": "The cluster has nodes of this type and size",
    "max_quota": "The job is no larger than the tenant's quota",
    "tenant": "The tenant is active",
    "quota": "The tenant's quota has room",
    "jobs": "The tenant may run one more job",
    "fair_share": "No job ahead in line needs these slots",
    "capacity": "Enough slots are free",
    "gang": "All learners fit on nodes at the same time",
}


def _meter(name: str, numbers: dict[str, Any]) -> tuple[int | None, int | None, int | None]:
    """In use, limit and what this job adds, for the checks that count something."""
    match name:
        case "max_quota":
            return 0, numbers["limit"], numbers["asked"]
        case "quota":
            return numbers["used"], numbers["limit"], numbers["asked"]
        case "jobs":
            return numbers["jobs_used"], numbers["jobs_limit"], 1
        case "capacity" if "total" in numbers:
            return numbers["total"] - numbers["free"], numbers["total"], numbers["asked"]
        case "gang" if "total" in numbers:
            return 0, numbers["learners_fitting"], numbers["learners"]
        case _:
            return None, None, None


def unit(slot_type: str, count: int) -> str:
    """The word for this many slots of a type: "CPU slots", "a100"."""
    if slot_type == CPU_TYPE:
        return "CPU slot" if count == 1 else "CPU slots"
    return slot_type or ("GPU" if count == 1 else "GPUs")


def _shape(gang: Gang) -> str:
    return str(gang.slots) if gang.learners.min == 1 else f"{gang.learners.min} × {gang.slots}"


def _no_matching_pool(verdict: Verdict, numbers: dict[str, Any]) -> str:
    gang = verdict.gang
    if "total" not in numbers:
        what = f"{verdict.slot_type} nodes" if verdict.slot_type else "GPU nodes"
        return f"This cluster has no {what}; choose another type."
    largest = numbers["largest_node"]
    if gang.slots > largest:
        return (
            f"No node is large enough: a learner needs {gang.slots} {unit(verdict.slot_type, gang.slots)} on one"
            f" node, the largest node has {largest}. Ask for at most {largest} per learner."
        )
    return (
        f"The cluster is too small: {_shape(gang)} {unit(verdict.slot_type, verdict.asked)} do not fit even if"
        f" nothing else runs. Ask for fewer learners."
    )


def _exceeds_max_quota(verdict: Verdict, numbers: dict[str, Any]) -> str:
    limit = numbers["limit"]
    if not limit:
        kind = verdict.gang.slot_type
        what = f"of {unit(kind, 0)}" if kind else "for any GPU type"
        return f"The tenant has no quota {what}, this job needs {verdict.asked}; ask an administrator."
    return (
        f"Larger than the tenant's quota: this job needs {verdict.asked} {unit(verdict.slot_type, verdict.asked)},"
        f" the quota is {limit}. Ask for fewer, or ask an administrator for more quota."
    )


def _tenant_suspended(verdict: Verdict, numbers: dict[str, Any]) -> str:
    return "The tenant is suspended: nothing new starts until an administrator activates it."


def _quota_gpus(verdict: Verdict, numbers: dict[str, Any]) -> str:
    limit = numbers["limit"]
    return (
        f"Waiting for quota: {numbers['used']} of {limit} {unit(verdict.slot_type, limit)} in use,"
        f" this job needs {verdict.asked}."
    )


def _quota_jobs(verdict: Verdict, numbers: dict[str, Any]) -> str:
    return (
        f"Waiting for another job to end: the tenant runs {numbers['jobs_used']} of {numbers['jobs_limit']} jobs"
        f" it may run at once."
    )


def _fair_share(verdict: Verdict, numbers: dict[str, Any]) -> str:
    needs = f"this job needs {verdict.asked} {unit(verdict.slot_type, verdict.asked)}"
    if verdict.own_head:
        return (
            f"Waiting its turn: the tenant's first job in line has waited too long to be overtaken; {needs}."
        )
    return (
        f"Waiting its turn: {numbers['kept']} of {numbers['free']} free {unit(verdict.slot_type, numbers['free'])}"
        f" are kept for a larger job that has waited longest; {needs}."
    )


def _insufficient_capacity(verdict: Verdict, numbers: dict[str, Any]) -> str:
    text = (
        f"Waiting for capacity: {numbers['free']} of {numbers['total']}"
        f" {unit(verdict.slot_type, numbers['total'])} free, this job needs {verdict.asked}"
    )
    down = numbers["nodes_down"]
    if down:
        text += f"; {down} {'node is' if down == 1 else 'nodes are'} down"
    return text + "."


def _gang_fragmented(verdict: Verdict, numbers: dict[str, Any]) -> str:
    gang = verdict.gang
    word = unit(verdict.slot_type, numbers["free"])
    if gang.learners.min == 1:
        return (
            f"Waiting for one node with {gang.slots} free: {numbers['free']} {word} are free,"
            f" at most {numbers['largest_block']} on one node."
        )
    return (
        f"Waiting for {_shape(gang)} at the same time: {numbers['free']} {word} are free, but only"
        f" {numbers['learners_fitting']} of {gang.learners.min} learners fit on nodes."
    )


_MESSAGES = {
    WaitReason.NO_MATCHING_POOL: _no_matching_pool,
    WaitReason.EXCEEDS_MAX_QUOTA: _exceeds_max_quota,
    WaitReason.TENANT_SUSPENDED: _tenant_suspended,
    WaitReason.QUOTA_GPUS: _quota_gpus,
    WaitReason.QUOTA_JOBS: _quota_jobs,
    WaitReason.FAIR_SHARE: _fair_share,
    WaitReason.INSUFFICIENT_CAPACITY: _insufficient_capacity,
    WaitReason.GANG_FRAGMENTED: _gang_fragmented,
}
