"""Requests about a job: halt, resume, save, cancel, clone. A repeated request gets the same response."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.selectors.serializers import JobSerializer
from jobs.services import clone_accept, clone_prepare, job_cancel, job_checkpoint, job_halt, job_resume
from jobs.services.clone import PreparedClone
from portal import submissions
from portal.api import permissions
from portal.api.examples import JOB_EXAMPLE
from portal.api.fields import StrictIntegerField, StrictSerializer
from portal.api.operations import Call, EmptyRequest, operation


@operation(
    authorize=permissions.to_operate,
    In=EmptyRequest,
    Out=JobSerializer,
    status=202,
    response_example=JOB_EXAMPLE | {"intent": "HALT", "phase": "Halting"},
)
def halt(call: Call, job_id: str) -> dict[str, Any]:
    """Halt a job: its program is asked to save, ends, and its devices are released; for its owner and managers.

    The receipt (step saved, steps lost, seconds taken) is in the HALTED event and in last_halt.
    """
    return JobSerializer.render_for(call.user, job_halt(user=call.user, job_id=job_id))


@operation(
    authorize=permissions.to_operate,
    In=EmptyRequest,
    Out=JobSerializer,
    status=202,
    response_example=JOB_EXAMPLE,
)
def checkpoint(call: Call, job_id: str) -> dict[str, Any]:
    """Request that a running program saves a checkpoint and continues; for those who may halt it.

    Refused with save_not_supported if the program has not called training.checkpoint_due() in this attempt. When it
    saves depends on the program; the checkpoint is in the job's list from the begin of its upload.
    """
    return JobSerializer.render_for(call.user, job_checkpoint(user=call.user, job_id=job_id))


class ResumeRequest(StrictSerializer):
    checkpoint = StrictIntegerField(
        min_value=1, max_value=2**31 - 1, required=False, allow_null=True, default=None
    )


@operation(
    authorize=permissions.to_operate,
    In=ResumeRequest,
    Out=JobSerializer,
    status=202,
    request_example={"checkpoint": 3},
    response_example=JOB_EXAMPLE | {"state": "HALTED", "intent": "RUN", "phase": "Resuming"},
)
def resume(call: Call, job_id: str) -> dict[str, Any]:
    """Resume a halted job; for its owner and managers.

    It resumes from checkpoint n. Without one it resumes from the newest valid checkpoint, or from the one named in an
    earlier resume until a later one has been saved.
    """
    resumed = job_resume(user=call.user, job_id=job_id, checkpoint=call.data["checkpoint"])
    return JobSerializer.render_for(call.user, resumed)


@operation(
    authorize=permissions.to_operate,
    In=EmptyRequest,
    Out=JobSerializer,
    status=202,
    response_example=JOB_EXAMPLE | {"intent": "CANCEL", "phase": "Canceling"},
)
def cancel(call: Call, job_id: str) -> dict[str, Any]:
    """Cancel a job permanently; for its owner and managers. Its checkpoints are kept."""
    return JobSerializer.render_for(call.user, job_cancel(user=call.user, job_id=job_id))


class CloneRequest(ResumeRequest):
    spec = serializers.DictField(required=False, default=dict, help_text="changed fields; null removes one")


def _clone(call: Call, job_id: str) -> PreparedClone:
    submissions.spend(call.user, submissions.What.JOBS)
    changes, checkpoint = call.data["spec"], call.data["checkpoint"]
    return clone_prepare(user=call.user, job_id=job_id, changes=changes, checkpoint=checkpoint)


@operation(
    authorize=permissions.to_clone,
    prepare=_clone,
    In=CloneRequest,
    Out=JobSerializer,
    status=202,
    location=lambda made: f"/api/v1/jobs/{made['id']}",
    request_example={"checkpoint": 3, "spec": {"env": {"LR": "0.01"}}},
    response_example=JOB_EXAMPLE | {"id": "3f9k3a1bcd2e", "cloned_from": "3f9k2m7qx4ta"},
)
def clone(call: Call, job_id: str) -> dict[str, Any]:
    """Submit a changed copy of a job, optionally from one of its checkpoints; for researchers and managers."""
    return JobSerializer.render(clone_accept(call.prepared))
