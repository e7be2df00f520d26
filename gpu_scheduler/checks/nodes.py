"""What is free on the nodes now: slots, whole learners, and the CPUs and memory beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from gpu_scheduler.checks.base import Check, Finding, Meter, Remedy, Scope
from gpu_scheduler.checks.words import NAMES, amount, are, devices, down, numbers_of, shape
from gpu_scheduler.draft import Supply
from gpu_scheduler.model import Gang, WaitReason, unit
from gpu_scheduler.rooms import CPUS, MEMORY


class Capacity(Check):
    """As many slots are free as the gang needs."""

    code = WaitReason.INSUFFICIENT_CAPACITY
    key = "capacity"
    title = "Free capacity"
    claim = "Enough devices are free"
    label = "waiting for capacity"
    scope = Scope.CLUSTER

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        assert supply.pool is not None
        return Finding(self, gang, supply, self.scope) if supply.pool.free.total < gang.asked else None

    def sentence(self, finding: Finding) -> str:
        numbers = finding.numbers
        return (
            f"Waiting for capacity: {numbers['free']} of {numbers['total']}"
            f" {unit(finding.supply.slot_type, numbers['total'])} free, this job needs {finding.gang.asked}"
            f"{down(numbers)}."
        )

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        if "total" not in numbers:
            return None
        return Meter(numbers["total"] - numbers["free"], numbers["total"], numbers["asked"])


class Idle(Capacity):
    """As many slots as an opportunistic gang needs are free, and no other job can take them or waits for them."""

    code = WaitReason.NOT_IDLE
    key = "idle"
    title = "Idle devices"
    claim = "Enough devices are idle"
    label = "waiting for idle devices"

    def numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        """kept: free slots beside those, on nodes of which something is reserved for jobs ahead."""
        return {"kept": supply.pool.withheld if supply.pool else 0}

    def sentence(self, finding: Finding) -> str:
        numbers = finding.numbers
        free, total, kept = (numbers[name] for name in ("free", "total", "kept"))
        kept_text = f", {kept} more {are(kept)} kept for jobs ahead" if kept else ""
        return (
            f"Runs on idle devices only: {free} of {total} {unit(finding.supply.slot_type, total)} {are(free)} idle"
            f"{kept_text}; this job needs {finding.gang.asked}{down(numbers)}."
        )


class WholeGang(Check):
    """The free slots lie on nodes so that each learner fits whole."""

    code = WaitReason.GANG_FRAGMENTED
    key = "gang"
    title = "Gang placement"
    claim = "All learners fit on nodes at the same time"
    label = "waiting for whole nodes"
    scope = Scope.CLUSTER

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        assert supply.pool is not None
        pool = supply.pool
        fits = pool.free.capacity(gang.need) >= gang.learners.min if pool.only_slots else pool.slots_fit(gang)
        return None if fits else Finding(self, gang, supply, self.scope)

    def sentence(self, finding: Finding) -> str:
        gang, numbers = finding.gang, finding.numbers
        free = numbers["free"]
        free_now = f"{free} {unit(finding.supply.slot_type, free)} {are(free)} free"
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


class _BesideSlots(Check):
    """The nodes with enough free slots have enough of another resource free, too."""

    scope = Scope.CLUSTER
    resource: ClassVar[int]

    def applies(self, supply: Supply) -> bool:
        pool = supply.pool
        return pool is not None and (pool.counts_cpus if self.resource == CPUS else pool.counts_memory)

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        assert supply.pool is not None
        if supply.pool.learners_fitting(gang) >= gang.learners.min:
            return None
        return Finding(self, gang, supply, self.scope) if supply.pool.shortage(gang, self.resource) else None

    def shortage_numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        short = supply.pool.shortage(gang, self.resource) if supply.pool else None
        return numbers_of(self.resource, short) | {"held_by_others": short.by_others} if short else {}

    def sentence(self, finding: Finding) -> str:
        gang, resource, slot_type = finding.gang, self.resource, finding.supply.slot_type
        assert finding.supply.pool is not None
        short = finding.supply.pool.shortage(gang, resource)
        assert short is not None
        kind = "CPUs" if resource == CPUS else "memory"
        text = (
            f"Waiting for {kind} on nodes with free {unit(slot_type, 0)}: a learner needs"
            f" {amount(resource, short.need)} beside its {devices(gang, slot_type)}"
        )
        if short.have < short.need:
            text += f"; at most {amount(resource, short.have)} {'is' if resource == MEMORY else 'are'} free on one node"
        else:
            text += f"; only {short.fitting} of {gang.learners.min} learners fit at the same time"
        if short.by_others:
            text += ". Programs outside Luthier hold too much of it: no end of a job frees enough"
        return text + down(finding.numbers) + "."

    def remedy_for(self, numbers: Mapping[str, Any]) -> Remedy:
        return Remedy.ASK if numbers.get("held_by_others") else self.remedy

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        if numbers.get("resource") != NAMES[self.resource] or numbers["have"] >= numbers["need"]:
            return None
        return Meter(0, math.floor(numbers["have"]), math.ceil(numbers["need"]))

    def meter_text(self, *, used: int, limit: int, asked: int) -> str:
        unit = "CPUs" if self.resource == CPUS else "MiB"
        return f"needs {asked} {unit}, at most {limit} are free on one node"


class NodeCpus(_BesideSlots):
    """Where a GPU learner's slots are free, so are its CPUs."""

    code = WaitReason.NODE_CPUS
    key = "node_cpus"
    title = "CPUs beside the devices"
    claim = "Nodes with free devices have enough free CPUs"
    label = "waiting for CPUs on nodes"
    resource = CPUS


class NodeMemory(_BesideSlots):
    """Where a learner's slots and CPUs are free, so is its memory."""

    code = WaitReason.NODE_MEMORY
    key = "node_memory"
    title = "Memory beside the devices"
    claim = "Nodes with free devices have enough free memory"
    label = "waiting for memory on nodes"
    resource = MEMORY
