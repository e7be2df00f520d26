"""Errors of requests about a job. The docstring is the default message.

portal.api.errors is the only place where one of these becomes a status code.
"""

from __future__ import annotations

from typing import Any

from tenants.errors import ServiceError


class JobError(ServiceError):
    """The request about this job failed."""

    code = "job_error"


class JobNotFound(JobError):
    """There is no such job, or it is not visible to you."""

    code = "not_found"


class JobForbidden(JobError):
    """Your role in this tenant does not allow this."""

    code = "not_allowed"


class IllegalTransition(JobError):
    """The job cannot do this in its current state."""  # details: state, phase, allowed_actions

    code = "illegal_transition"


class TimeLimitUsedUp(IllegalTransition):
    """The job has used up its time limit."""  # details: state, phase, allowed_actions, ran_s, time_limit_s

    code = "time_limit_used_up"


class SaveNotSupported(IllegalTransition):
    """Its program has not asked for requests to save (training.checkpoint_due()) so far: it would not notice one."""

    code = "save_not_supported"


class TenantSuspended(JobError):
    """This tenant is suspended: jobs can be neither submitted nor started. Ask a platform admin."""

    code = "tenant_suspended"


class TooManySubmissions(JobError):
    """Too many jobs within a minute. Try again in a minute."""

    code = "too_many_requests"


class SpecInvalid(JobError):
    """The job spec has errors; nothing was changed."""  # details["errors"]: path, code, message, got, allowed, …

    code = "spec_invalid"


class SpecUnreadable(SpecInvalid):
    """The job spec is not a document that can be read as it is; nothing was changed."""

    def __init__(self, code: str, errors: list[dict[str, Any]]) -> None:
        super().__init__(errors=errors)
        self.code = code  # type: ignore[misc]  # one class for all codes of a document


class RuntimeInUse(JobError):
    """Unfinished jobs use this runtime."""  # details: jobs, how many

    code = "runtime_in_use"


class RuntimeOfTree(JobError):
    """This runtime comes with the platform: its title and description can be changed, and it can be disabled."""

    code = "runtime_of_tree"


class SecretNotFound(SpecInvalid):
    """A secret that the job names does not exist any more. Set it again, then resume the job."""

    code = "secret_not_found"


class ImageNotAllowed(SpecInvalid):
    """The tenant may not run the job's container image. Ask a platform admin to allow it."""

    code = "image_not_allowed"


class CodeNotStored(JobError):
    """The store of files is not responding. Nothing was changed; submit again in a moment."""

    code = "store_unavailable"


class DiskIsFull(JobError):
    """The platform's disk has too little free space: no job and no code is accepted. Jobs that are there continue."""

    code = "disk_full"


class CheckpointNotFound(JobError):
    """The job has no valid checkpoint of this number."""  # details: checkpoints, the numbers that exist

    code = "checkpoint_not_found"


class UploadNotFound(SpecInvalid):
    """There is no such upload in this tenant, or it has expired (24 h): upload the archive again."""

    code = "upload_not_found"


class UploadInvalid(JobError):
    """The archive was rejected."""

    def __init__(self, code: str, message: str, errors: list[dict[str, str | None]]) -> None:
        super().__init__(message, errors=errors)
        self.code = code  # type: ignore[misc]  # one class for all archive_* codes


class CodeInvalid(JobError):
    """The code cannot be stored as it is."""

    code = "code_invalid"


class JobChanged(JobError):
    """The job has changed since you read it. Read it again, then repeat the change."""  # details: etag

    code = "version_changed"


class RemovedByRetention(JobError):
    """A retention rule removed this data."""  # details: kind, removed_at, rule

    code = "removed_by_retention"


class IdempotencyKeyInvalid(JobError):
    """An Idempotency-Key must have 1 to 128 printable ASCII characters without spaces."""

    code = "idempotency_key_invalid"


class IdempotencyKeyReused(JobError):
    """This Idempotency-Key was used for another request. Use a new key for each request."""

    code = "idempotency_key_reused"


class IdempotencyInProgress(JobError):
    """The first request with this Idempotency-Key is still in progress. Try again in a second."""

    code = "idempotency_in_progress"
