"""The checklist of a job spec: one line per check, passed ones included, as shown next to the form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from gpu_scheduler.checks import Scope, check_of
from gpu_scheduler.checks.words import hours
from gpu_scheduler.model import WaitReason
from jobs import clusters, humanize
from jobs.models import Upload
from jobs.selectors.budgets import budget_of
from jobs.selectors.what_if import Preview
from jobs.spec import API_VERSION, Spec
from tenants.models import Tenant

NAMES = ("spec", "code", "data", "budget", "quota", "gang")
OF_SOME = {"budget"}
"""Names of checks that concern a job only where its tenant has a limit of that kind."""
LATER = "Not checked yet"
SO_FAR = "No errors so far; will be checked again after you fix the others"
UNSEEN = "Not visible from here; the job reports it if it is missing"

OF_THE_CLUSTER = {"exceeds_cluster", "gpu_type_not_found"}
"""Codes of errors that mean that the gang can never fit."""

OF_THE_TENANT = {"exceeds_gang_limit", "exceeds_user_limit", "exceeds_project_limit"}
"""Codes of errors that mean that the tenant allows no such job."""

Check = dict[str, str]


class Result(StrEnum):
    """failed: the job is refused. waits: it is accepted but does not start now. skipped: not checked."""

    PASSED = "passed"
    WAITS = "waits"
    FAILED = "failed"
    SKIPPED = "skipped"


def of_refused(errors: Sequence[Mapping[str, Any]]) -> list[Check]:
    """The checklist of a spec with errors; checks without an error are not finished."""
    found: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for error in errors:
        found[_check_of(error)].append(error)
    return [
        _check(name, Result.FAILED, _counted(found[name]))
        if name in found
        else _check(name, Result.SKIPPED, SO_FAR if name == "spec" else LATER)
        for name in NAMES
        if name not in OF_SOME
    ]


def of_valid(tenant: Tenant, spec: Spec, foreseen: Preview, *, warnings: int) -> list[Check]:
    """The checklist of a spec without errors, with what would happen to the job now."""
    noted = f", {warnings} warning{'' if warnings == 1 else 's'}" if warnings else ""
    return [
        _check("spec", Result.PASSED, f"{API_VERSION}, no errors{noted}"),
        _check("code", Result.PASSED, _code(tenant, spec)),
        _data(spec),
        *_budget(tenant, spec, foreseen),
        *_outlook(spec, foreseen),
    ]


def _check(name: str, result: Result, message: str) -> Check:
    return {"name": name, "result": result.value, "message": message}


def _check_of(error: Mapping[str, Any]) -> str:
    if error["code"] in OF_THE_CLUSTER:
        return "gang"
    if error["code"] in OF_THE_TENANT:
        return "quota"
    field = error["path"].partition(".")[0].partition("[")[0]
    return field if field in ("code", "data") else "spec"


def _counted(errors: Iterable[Mapping[str, Any]]) -> str:
    """Such as "2 errors, on lines 3 and 29"; more than three lines are not listed."""
    listed = list(errors)
    lines = sorted({error["line"] for error in listed if error["line"]})
    count = f"{len(listed)} error{'' if len(listed) == 1 else 's'}"
    if not lines or len(lines) > 3:
        return count
    named = " and ".join(filter(None, [", ".join(map(str, lines[:-1])), str(lines[-1])]))
    return f"{count}, on line{'' if len(lines) == 1 else 's'} {named}"


def _code(tenant: Tenant, spec: Spec) -> str:
    if spec.code is None:
        return "None; it is in the image"
    if not spec.code.upload:
        size = sum(len(text.encode()) for _, text in spec.code.files)
        return f"{_files(len(spec.code.files), size)} in the spec"
    upload = Upload.objects.filter(tenant=tenant, pk=spec.code.upload).first()
    return f"{_files(upload.files, upload.bytes)} uploaded" if upload else "Same as the original job"


def _files(count: int, size: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}, {humanize.filesize(size)}"


def _data(spec: Spec) -> Check:
    if not spec.data:
        return _check("data", Result.PASSED, "None requested")
    if not clusters.capabilities().node_local_data:
        return _check("data", Result.SKIPPED, UNSEEN)
    paths = ", ".join(mount.path for mount in spec.data)
    return _check("data", Result.PASSED, f"{paths}: found")


def _budget(tenant: Tenant, spec: Spec, foreseen: Preview) -> list[Check]:
    """The GPU-hour budget and what the job can add to it, where it counts against one."""
    if not spec.resources.gpus or spec.opportunistic or (budget := budget_of(tenant)) is None:
        return []
    if foreseen.code == WaitReason.BUDGET_EXHAUSTED:
        return [_check("budget", Result.WAITS, foreseen.message)]
    used = f"{budget.used} of {budget.limit} GPU-hours of {budget.period_start:%B} used"
    if spec.time_limit_s is None:
        adds = "this job has no time limit, so what it will use is not known"
    else:
        most = spec.slots_per_learner * spec.resources.learners.max * spec.time_limit_s / 3600
        adds = f"within its time limit this job can use {hours(most)} more, besides starts and saves"
    kind = "hard" if budget.is_hard else "soft: it only warns"
    return [_check("budget", Result.PASSED, f"{used}; {adds}. The budget is {kind}")]


def _outlook(spec: Spec, foreseen: Preview) -> list[Check]:
    """Quota and gang. Placement is not checked until the tenant's limits admit the job."""
    learners, quota, asked = len(foreseen.nodes), foreseen.quota, spec.asked
    sum_ = f"{quota.slot_type}: {quota.used} in use + {asked} of {quota.limit}"
    if spec.opportunistic:
        sum_ = f"{quota.slot_type}: opportunistic, so it takes nothing of the {quota.limit}"
    elif quota.cohort and quota.used + asked > quota.limit:
        sum_ += f"; {quota.used + asked - quota.limit} would be borrowed from cohort {quota.cohort}"
    if foreseen.starts:
        where = ", ".join(sorted(set(foreseen.nodes)))
        fits = (
            f"{learners} of {learners} learners fit, on {where}"
            if learners > 1
            else f"1 learner fits on {where}"
        )
        return [_check("quota", Result.PASSED, sum_), _check("gang", Result.PASSED, fits)]
    check = check_of(foreseen.code)
    later = "Not checked until the tenant's limits admit the job"
    if foreseen.code == WaitReason.BUDGET_EXHAUSTED:
        return [_check(name, Result.SKIPPED, later) for name in ("quota", "gang")]
    if check is not None and check.scope is Scope.TENANT:
        return [_check("quota", Result.WAITS, foreseen.message), _check("gang", Result.SKIPPED, later)]
    return [_check("quota", Result.PASSED, sum_), _check("gang", Result.WAITS, foreseen.message)]
