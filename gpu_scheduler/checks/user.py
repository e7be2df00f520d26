"""How much one user of the tenant may use: slots of a type, and jobs at once."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.checks.base import Check, Finding, Meter, Remedy, Scope
from gpu_scheduler.checks.words import are
from gpu_scheduler.draft import Supply
from gpu_scheduler.model import Gang, WaitReason, unit


class UserMax(Check):
    """The job alone is no larger than what one user can have."""

    code = WaitReason.EXCEEDS_USER_LIMIT
    key = "user_max"
    title = "Job size vs user limit"
    claim = "The job is no larger than the limit for one user"
    label = "larger than the user limit"
    remedy = Remedy.FIX
    scope = Scope.TENANT
    of_owner = True
    queues = False
    private = frozenset({"user_limit", "user_used"})
    redacted = "Larger than the tenant's limit for one user. Clone the job with fewer devices."

    def applies(self, supply: Supply) -> bool:
        return supply.users.slots is not None

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        limit = supply.users.slots
        return Finding(self, gang, supply, None) if limit is not None and gang.asked > limit else None

    def numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        return _slots(gang, supply)

    def sentence(self, finding: Finding) -> str:
        gang, kind, limit = finding.gang, finding.supply.slot_type, finding.supply.users.slots or 0
        return (
            f"Larger than the tenant's limit for one user: this job needs {gang.asked} {unit(kind, gang.asked)}, a user"
            f" can have {limit} at once. Request fewer, or ask a platform admin to raise the limit."
        )

    def nearness(self, finding: Finding) -> int:
        return finding.supply.users.slots or 0

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        return Meter(0, numbers["user_limit"], numbers["asked"])

    def meter_text(self, *, used: int, limit: int, asked: int) -> str:
        return f"needs {asked}, a user can have {limit}"


class UserRoom(Check):
    """The user's running jobs, and what is reserved for one ahead, leave enough of what one user can have."""

    code = WaitReason.USER_GPUS
    key = "user_quota"
    title = "User limit"
    claim = "The owner is below the limit for one user"
    label = "over the user limit"
    scope = Scope.TENANT
    of_owner = True
    own = True
    private = frozenset({"user_limit", "user_used", "user_reserved", "holder"})
    redacted = "Waiting for another job of its owner to end."

    def applies(self, supply: Supply) -> bool:
        return supply.users.slots is not None

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        limit = supply.users.slots
        if limit is None:
            return None
        taken = supply.users.used[gang.user] + supply.users.reserved_ahead_of(gang.job, gang.user)
        return Finding(self, gang, supply, self.scope) if taken + gang.asked > limit else None

    def numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        return _slots(gang, supply)

    def shortage_numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        """holder: the user whose jobs hold what is missing, or the user's job that it is reserved for."""
        ahead = supply.users.reserved_ahead_of(gang.job, gang.user)
        return {
            "holder": supply.users.reserved[gang.user][1] if ahead else gang.user,
            "user_reserved": ahead,
        }

    def sentence(self, finding: Finding) -> str:
        gang, supply = finding.gang, finding.supply
        used, limit = supply.users.used[gang.user], supply.users.slots or 0
        kind, ahead = unit(supply.slot_type, limit), finding.numbers["user_reserved"]
        if ahead:
            return (
                f"Waiting its turn: of {limit} {kind} that one user can have, {gang.user} uses {used} and {ahead}"
                f" {are(ahead)} reserved for job {finding.numbers['holder']} ahead in the queue; this job needs"
                f" {gang.asked}."
            )
        return (
            f"Waiting for a job of {gang.user} to end: {gang.user} uses {used} of {limit} {kind} that one user"
            f" can have, this job needs {gang.asked}."
        )

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        return Meter(numbers["user_used"], numbers["user_limit"], numbers["asked"])


class UserJobs(Check):
    """The user's running jobs, and one for each that is reserved for ahead, are fewer than one user can run at once."""

    code = WaitReason.USER_JOBS
    key = "user_jobs"
    title = "Concurrent jobs of the user"
    claim = "The owner is below the limit of concurrent jobs for one user"
    label = "too many jobs of the user at once"
    scope = Scope.TENANT
    of_owner = True
    own = True
    private = frozenset({"user_jobs_limit", "user_jobs_used", "user_jobs_reserved", "holder"})
    redacted = "Waiting for another job of its owner to end."

    def applies(self, supply: Supply) -> bool:
        return supply.users.jobs is not None

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        users, user = supply.users, gang.user
        if users.jobs is None:
            return None
        taken = users.live[user] + len(users.jobs_ahead_of(gang.job, user))
        return Finding(self, gang, supply, self.scope) if taken >= users.jobs else None

    def numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        return {"user_jobs_limit": supply.users.jobs, "user_jobs_used": supply.users.live[gang.user]}

    def shortage_numbers(self, gang: Gang, supply: Supply) -> dict[str, Any]:
        """holder: the user whose jobs run, or the user's job that the next place is reserved for."""
        ahead = supply.users.jobs_ahead_of(gang.job, gang.user)
        return {"holder": ahead[0] if ahead else gang.user, "user_jobs_reserved": len(ahead)}

    def sentence(self, finding: Finding) -> str:
        user, users = finding.gang.user, finding.supply.users
        if ahead := finding.numbers["user_jobs_reserved"]:
            return (
                f"Waiting its turn: {user} runs {users.live[user]} of at most {users.jobs} jobs that one user can run"
                f" at once, and {ahead} {are(ahead)} reserved for job {finding.numbers['holder']} ahead in the queue."
            )
        return (
            f"Waiting for a job of {user} to end: {user} runs {users.live[user]} of at most {users.jobs} jobs that one"
            " user can run at once."
        )

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        return Meter(numbers["user_jobs_used"], numbers["user_jobs_limit"], 1)


def _slots(gang: Gang, supply: Supply) -> dict[str, Any]:
    return {"user_limit": supply.users.slots, "user_used": supply.users.used[gang.user]}
