"""Checks of what is free on the nodes now, and of what is reserved there for jobs ahead in the queue."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.checks.base import Candidate, Check, Finding, Holder, Meter, shape, unit
from gpu_scheduler.model import WaitReason


class Unreserved(Check):
    """Nothing that the job needs is reserved for one ahead of it: by its own tenant's quota, or on the nodes."""

    code = WaitReason.FAIR_SHARE
    key = "fair_share"
    title = "Fair share"
    claim = "No job ahead in the queue needs these devices"
    label = "waiting its turn"
    holder = Holder.CLUSTER

    def test(self, on: Candidate) -> Finding | None:
        account, jobs, gang, pool = on.account, on.jobs, on.gang, on.pool
        if account.reserved_for != gang.job and (
            account.used + account.reserved + on.asked > account.limit
            or (jobs.limit is not None and jobs.used + jobs.reserved + 1 > jobs.limit)
        ):
            return Finding(self, on, Holder.TENANT)
        if (
            account.reserved_for == gang.job
            and jobs.limit is not None
            and jobs.used + jobs.reserved > jobs.limit
        ):
            return Finding(self, on, Holder.TENANT)
        assert pool is not None
        if pool.free.capacity(gang.slots) >= gang.learners.min and not pool.fits(gang, on.now):
            return Finding(self, on, Holder.CLUSTER)
        return None

    def sentence(self, finding: Finding) -> str:
        on = finding.on
        needs = f"this job needs {on.asked} {unit(on.slot_type, on.asked)}"
        if finding.holder is Holder.TENANT:
            return f"Waiting its turn: the tenant's first job in the queue has waited too long to be skipped; {needs}."
        free, reserved = finding.numbers["free"], finding.numbers["reserved"]
        return (
            f"Waiting its turn: {reserved} of {free} free {unit(on.slot_type, free)} {_are(reserved)} reserved"
            f" for a larger job that has waited longest; {needs}."
        )


class Capacity(Check):
    """As many slots are free as the gang needs."""

    code = WaitReason.INSUFFICIENT_CAPACITY
    key = "capacity"
    title = "Free capacity"
    claim = "Enough devices are free"
    label = "waiting for capacity"
    holder = Holder.CLUSTER

    def test(self, on: Candidate) -> Finding | None:
        assert on.pool is not None
        return Finding(self, on, self.holder) if on.pool.free.total < on.asked else None

    def sentence(self, finding: Finding) -> str:
        on, numbers = finding.on, finding.numbers
        text = (
            f"Waiting for capacity: {numbers['free']} of {numbers['total']}"
            f" {unit(on.slot_type, numbers['total'])} free, this job needs {on.asked}"
        )
        down = numbers["nodes_down"]
        if down:
            text += f"; {down} {'node is' if down == 1 else 'nodes are'} down"
        return text + "."

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        if "total" not in numbers:
            return None
        return Meter(numbers["total"] - numbers["free"], numbers["total"], numbers["asked"])


class WholeGang(Check):
    """The free slots lie on nodes so that each learner fits whole."""

    code = WaitReason.GANG_FRAGMENTED
    key = "gang"
    title = "Gang placement"
    claim = "All learners fit on nodes at the same time"
    label = "waiting for whole nodes"
    holder = Holder.CLUSTER

    def test(self, on: Candidate) -> Finding | None:
        assert on.pool is not None
        if on.pool.free.capacity(on.gang.slots) >= on.gang.learners.min:
            return None
        return Finding(self, on, self.holder)

    def sentence(self, finding: Finding) -> str:
        gang, numbers = finding.on.gang, finding.numbers
        free = numbers["free"]
        free_now = f"{free} {unit(finding.on.slot_type, free)} {_are(free)} free"
        if gang.learners.min == 1:
            return (
                f"Waiting for one node with {gang.slots} free: {free_now},"
                f" at most {numbers['largest_block']} on one node."
            )
        return (
            f"Waiting for {shape(gang)} at the same time: {free_now}, but only"
            f" {numbers['learners_fitting']} of {gang.learners.min} learners fit on nodes."
        )

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        if "total" not in numbers:
            return None
        return Meter(0, numbers["learners_fitting"], numbers["learners"])

    def meter_text(self, *, used: int, limit: int, asked: int) -> str:
        return f"{limit} of {asked} learner{'' if asked == 1 else 's'} would fit now"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
