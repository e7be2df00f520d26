"""What was looked at when a spec was judged, one line each: what a person sees beside a form, good news included."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from gpu_scheduler.checks import AWAITS_CLUSTER
from gpu_scheduler.model import WaitReason
from jobs import clusters, humanize
from jobs.models import Upload
from jobs.selectors.what_if import Preview
from jobs.spec import API_VERSION, Spec
from tenants.models import Tenant

NAMES = ("spec", "code", "data", "quota", "gang")
LATER = "Looked at once the errors are mended"
SO_FAR = "No error so far; looked at to its end once the others are mended"
UNSEEN = "Cannot be seen from here; the job says so if it is missing"

OF_THE_CLUSTER = {"exceeds_cluster", "gpu_type_not_found"}
"""Errors that say that the gang never fits."""
OF_THE_GANG = AWAITS_CLUSTER | {WaitReason.NO_MATCHING_POOL}
"""Reasons to wait that lie with the nodes; all others lie with the tenant's own limits."""

Check = dict[str, str]


class Result(StrEnum):
    """failed refuses the job, waits lets it in to wait, skipped was not looked at."""

    PASSED = "passed"
    WAITS = "waits"
    FAILED = "failed"
    SKIPPED = "skipped"


def of_refused(errors: Sequence[Mapping[str, Any]]) -> list[Check]:
    """The checks of a spec with errors: which of them found some; the others wait for these to be mended."""
    found: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for error in errors:
        found[_check_of(error)].append(error)
    return [
        _check(name, Result.FAILED, _counted(found[name]))
        if name in found
        else _check(name, Result.SKIPPED, SO_FAR if name == "spec" else LATER)
        for name in NAMES
    ]


def of_valid(tenant: Tenant, spec: Spec, foreseen: Preview, *, warnings: int) -> list[Check]:
    """The checks of a spec that may be submitted, and what it would meet now."""
    noted = f", {warnings} warning{'' if warnings == 1 else 's'}" if warnings else ""
    return [
        _check("spec", Result.PASSED, f"{API_VERSION}, no errors{noted}"),
        _check("code", Result.PASSED, _code(tenant, spec)),
        _data(spec),
        *_outlook(spec, foreseen),
    ]


def _check(name: str, result: Result, message: str) -> Check:
    return {"name": name, "result": result.value, "message": message}


def _check_of(error: Mapping[str, Any]) -> str:
    if error["code"] in OF_THE_CLUSTER:
        return "gang"
    field = error["path"].partition(".")[0].partition("[")[0]
    return field if field in ("code", "data") else "spec"


def _counted(errors: Iterable[Mapping[str, Any]]) -> str:
    """2 errors, on lines 3 and 29; at most three lines are named."""
    listed = list(errors)
    lines = sorted({error["line"] for error in listed if error["line"]})
    count = f"{len(listed)} error{'' if len(listed) == 1 else 's'}"
    if not lines or len(lines) > 3:
        return count
    named = " and ".join(filter(None, [", ".join(map(str, lines[:-1])), str(lines[-1])]))
    return f"{count}, on line{'' if len(lines) == 1 else 's'} {named}"


def _code(tenant: Tenant, spec: Spec) -> str:
    if spec.code is None:
        return "None; the image has it"
    if not spec.code.upload:
        size = sum(len(text.encode()) for _, text in spec.code.files)
        return f"{_files(len(spec.code.files), size)} in the spec"
    upload = Upload.objects.filter(tenant=tenant, pk=spec.code.upload).first()
    return f"{_files(upload.files, upload.bytes)} uploaded" if upload else "As in the job that is cloned"


def _files(count: int, size: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}, {humanize.filesize(size)}"


def _data(spec: Spec) -> Check:
    if not spec.data:
        return _check("data", Result.PASSED, "None asked for")
    if not clusters.capabilities().node_local_data:
        return _check("data", Result.SKIPPED, UNSEEN)
    paths = ", ".join(mount.path for mount in spec.data)
    return _check("data", Result.PASSED, f"{paths}: there")


def _outlook(spec: Spec, foreseen: Preview) -> list[Check]:
    """Quota and gang. Whether the gang fits is not looked at before the tenant's limits let it in."""
    learners, share = spec.resources.learners, foreseen.quota
    sum_ = f"{share.slot_type}: {share.used} in use + {spec.slots_per_learner * learners} of {share.limit}"
    if foreseen.starts:
        where = ", ".join(sorted(set(foreseen.nodes)))
        fits = (
            f"{learners} of {learners} learners fit, on {where}"
            if learners > 1
            else f"1 learner fits on {where}"
        )
        return [_check("quota", Result.PASSED, sum_), _check("gang", Result.PASSED, fits)]
    if foreseen.code in OF_THE_GANG:
        return [_check("quota", Result.PASSED, sum_), _check("gang", Result.WAITS, foreseen.message)]
    told = (
        sum_ if foreseen.code in (WaitReason.QUOTA_GPUS, WaitReason.EXCEEDS_MAX_QUOTA) else foreseen.message
    )
    later = "Looked at once the tenant's limits let it in"
    return [_check("quota", Result.WAITS, told), _check("gang", Result.SKIPPED, later)]
