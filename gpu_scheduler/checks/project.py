"""How much one project of the tenant may use of a type."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.checks.base import Check, Finding, Meter, Remedy, Scope
from gpu_scheduler.checks.words import are
from gpu_scheduler.draft import Supply
from gpu_scheduler.model import Gang, WaitReason, unit

PRIVATE = frozenset(
    {"project", "project_limit", "project_used", "project_guarantee", "project_reserved", "holder"}
)


class _OfProject(Check):
    scope = Scope.TENANT
    of_owner = True
    private = PRIVATE

    def applies(self, supply: Supply) -> bool:
        return bool(supply.projects.tenants)

    def concerns(self, gang: Gang) -> bool:
        return bool(gang.project)

    def numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        account = supply.project(gang)
        if not account.name:
            return {}
        return {
            "project": account.name,
            "project_guarantee": account.guarantee,
            "project_limit": account.limit,
            "project_used": account.used,
        }


class ProjectMax(_OfProject):
    """The job alone is no larger than what its project can have."""

    code = WaitReason.EXCEEDS_PROJECT_LIMIT
    key = "project_max"
    title = "Job size vs project limit"
    claim = "The job is no larger than its project's limit"
    label = "larger than the project's limit"
    remedy = Remedy.FIX
    queues = False
    redacted = "Larger than its project's limit. Clone the job with fewer devices, or into another project."

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        limit = supply.project(gang).limit
        return Finding(self, gang, supply, None) if limit is not None and gang.asked > limit else None

    def sentence(self, finding: Finding) -> str:
        gang, kind, account = finding.gang, finding.supply.slot_type, finding.supply.project(finding.gang)
        return (
            f"Larger than the limit of project {account.name}: this job needs {gang.asked} {unit(kind, gang.asked)},"
            f" the project can have {account.limit} at once. Request fewer, or ask a manager of the tenant to raise the"
            " limit."
        )

    def nearness(self, finding: Finding) -> int:
        return finding.supply.project(finding.gang).limit or 0

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        limit = numbers.get("project_limit")
        return None if limit is None else Meter(0, limit, numbers["asked"])

    def meter_text(self, *, used: int, limit: int, asked: int) -> str:
        return f"needs {asked}, the project can have {limit}"


class ProjectRoom(_OfProject):
    """The project's running jobs, and what is reserved for one ahead, leave enough of what the project can have."""

    code = WaitReason.PROJECT_GPUS
    key = "project_quota"
    title = "Project limit"
    claim = "The project is below its limit"
    label = "over the project's limit"
    own = True
    of_project = True
    redacted = "Waiting for another job of its project to end."

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        account = supply.project(gang)
        if account.limit is None:
            return None
        taken = account.used + account.reserved_ahead_of(gang.job)
        return Finding(self, gang, supply, self.scope) if taken + gang.asked > account.limit else None

    def shortage_numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        """holder: the project whose jobs hold what is missing, or its job that it is reserved for."""
        account = supply.project(gang)
        ahead = account.reserved_ahead_of(gang.job)
        return {"holder": account.reserved_for if ahead else account.name, "project_reserved": ahead}

    def sentence(self, finding: Finding) -> str:
        gang, account = finding.gang, finding.supply.project(finding.gang)
        kind, ahead = unit(finding.supply.slot_type, account.limit or 0), finding.numbers["project_reserved"]
        uses = f"project {account.name} uses {account.used} of {account.limit} {kind} that it can have"
        if ahead:
            return (
                f"Waiting its turn: {uses}, and {ahead} {are(ahead)} reserved for job {finding.numbers['holder']} ahead"
                f" in the queue; this job needs {gang.asked}."
            )
        return f"Waiting for a job of its project to end: {uses}, this job needs {gang.asked}."

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        limit = numbers.get("project_limit")
        return None if limit is None else Meter(numbers["project_used"], limit, numbers["asked"])
