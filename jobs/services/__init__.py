"""What people request. Services check, write the intent and notify the lifecycle; they never move a job.

Every function takes the caller as ``user``, checks their permission itself, and raises jobs.errors.JobError.
"""

from jobs.services.checkpoint_now import job_checkpoint
from jobs.services.clone import clone_accept, clone_prepare, job_clone
from jobs.services.edit import job_delete, job_edit
from jobs.services.idempotency import answer_once
from jobs.services.intents import job_cancel, job_halt, job_resume
from jobs.services.submit import job_accept, job_check, job_prepare, job_submit, require_submit

__all__ = [
    "answer_once",
    "clone_accept",
    "clone_prepare",
    "job_accept",
    "job_cancel",
    "job_check",
    "job_checkpoint",
    "job_clone",
    "job_delete",
    "job_edit",
    "job_halt",
    "job_prepare",
    "job_resume",
    "job_submit",
    "require_submit",
]
