"""A rule of an installation's own: it reads what it wants of a gang, and brings numbers of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gpu_scheduler.checks import CHECKS, Check, Finding, Meter, Scope, Supply
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Gang, Resources, WaitReason
from gpu_scheduler.policies.fair_share import FairShare
from tests.gpu_scheduler.worlds import gang, nodes, snapshot

LIMIT_MIB = 1000


class MemoryLimit(Check):
    """No learner takes more memory than the limit, but those of bob."""

    code = WaitReason.QUOTA_JOBS
    key = "memory"
    title = "Memory"
    claim = "Each learner stays below the limit"
    label = "too much memory"
    scope = Scope.TENANT
    reads = ("resources", "user")

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        fails = gang.user != "bob" and (gang.resources.memory_mib or 0) > LIMIT_MIB
        return Finding(self, gang, supply, self.scope) if fails else None

    def numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        return {"memory_mib": gang.resources.memory_mib or 0}

    def sentence(self, finding: Finding) -> str:
        return f"A learner takes {finding.numbers['memory_mib']} MiB, at most {LIMIT_MIB} are allowed."

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        return Meter(0, LIMIT_MIB, numbers["memory_mib"])


@dataclass(frozen=True, slots=True)
class WithMemoryLimit(FairShare):
    name: ClassVar[str] = "with_memory_limit"
    checks: ClassVar[tuple[Check, ...]] = (*CHECKS, MemoryLimit())


def sized(job: str, memory_mib: int, **changes: Any) -> Gang:
    return replace(gang(job, slots=2, **changes), resources=Resources(2, 1, memory_mib))


def test_a_refusal_of_one_gang_is_not_that_of_another_that_the_rule_distinguishes() -> None:
    waiting = [sized("j1", 2000), sized("j2", 10), sized("j3", 2000, user="bob")]
    made = plan(replace(snapshot(nodes(a1=8), waiting), policy=WithMemoryLimit()))
    assert sorted(start.job for start in made.starts) == ["j2", "j3"]
    (wait,) = made.waits
    assert wait.message == "A learner takes 2000 MiB, at most 1000 are allowed."
    assert wait.numbers["memory_mib"] == 2000
    assert wait.checks()[-1] | {"text": ""} == {
        "check": "memory",
        "ok": False,
        "used": 0,
        "limit": LIMIT_MIB,
        "asked": 2000,
        "text": "",
    }


def test_its_meter_is_drawn_where_another_rule_fails() -> None:
    (wait,) = plan(replace(snapshot(nodes(a1=1), [sized("j1", 700)]), policy=WithMemoryLimit())).waits
    assert wait.code is WaitReason.NO_MATCHING_POOL
    assert (wait.checks()[-1]["ok"], wait.checks()[-1]["asked"]) == (None, 700)
