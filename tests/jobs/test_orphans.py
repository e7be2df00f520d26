"""Nothing is left behind: for every table, what removes its rows once nothing needs them, and that it does.

Bytes and folders have tests of their own: blobs in tests/jobs/test_blobs.py, layers of packages in
tests/gpu_scheduler/clusters/test_local_packages.py, gangs in tests/jobs/lifecycle/test_periodic.py, sockets' folders in
tests/setup/test_socket_folders.py.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.apps import apps
from django.db import models
from django.db.models.functions import Now
from django.utils import timezone
from guardian.models import UserObjectPermission

from jobs import retention
from jobs.lifecycle import periodic
from jobs.models import Dismissal, Estimate, Job, Promise, UsageDue
from jobs.services.sharing import SharePermission, job_share
from tenants.models import RetentionRule, Token
from tests.jobs.conftest import People
from tests.jobs.ended import ended

pytestmark = pytest.mark.django_db

WITH_ITS_JOB = "with its job, after LUTHIER_RETENTION_DAYS (periodic.purge)"
KEPT = "kept: a fact that people manage"
BOUNDED = "kept: one row per thing of the installation"
FAIRNESS = "after 400 days (jobs.fairness_hours)"
COLLECTED = {
    "jobs.Attempt": WITH_ITS_JOB,
    "jobs.Blob": "an hour after the last reference (blobs.sweep)",
    "jobs.Checkpoint": WITH_ITS_JOB,
    "jobs.CheckpointFile": "with its checkpoint; by keep and retention before",
    "jobs.ClusterNode": "when the cluster does not show it (lifecycle.cycle)",
    "jobs.DecidedPlan": "with deleted jobs of its time; its snapshot beyond 64 MiB of newer ones (lifecycle.recording)",
    "jobs.Dismissal": WITH_ITS_JOB,
    "jobs.Estimate": WITH_ITS_JOB,
    "jobs.IdempotentResponse": "after 24 h (periodic.tidy)",
    "jobs.Job": "LUTHIER_RETENTION_DAYS after its deletion (periodic.purge)",
    "jobs.JobEvent": WITH_ITS_JOB,
    "jobs.Learner": WITH_ITS_JOB,
    "jobs.LogChunk": WITH_ITS_JOB,
    "jobs.LogIndex": WITH_ITS_JOB,
    "jobs.MetricPoint": WITH_ITS_JOB,
    "jobs.MetricRollup": WITH_ITS_JOB,
    "jobs.FairnessHour": FAIRNESS,
    "jobs.FairnessShare": FAIRNESS,
    "jobs.NodeChange": "after 400 days, unless it says what the node is (jobs.fairness_hours)",
    "jobs.PeriodicTask": BOUNDED,
    "jobs.PlatformStop": "kept: one row per stop of the platform",
    "jobs.Progress": WITH_ITS_JOB,
    "jobs.Promise": "when the job's last offered file has arrived or is removed, at the latest with its job",
    "jobs.Removal": WITH_ITS_JOB,
    "jobs.ResultFile": WITH_ITS_JOB,
    "jobs.Runtime": KEPT,
    "jobs.SchedulerState": BOUNDED,
    "jobs.SchedulingLease": BOUNDED,
    "jobs.Share": WITH_ITS_JOB,
    "jobs.StorageChange": "when it is added to its tenant's use (jobs.storage)",
    "jobs.StorageUse": KEPT,
    "jobs.Upload": "after 24 h (periodic.tidy)",
    "jobs.UsageDay": "kept: one row per user, slot type and day of use, which outlives the jobs",
    "jobs.UsageDue": "when it is rolled up (jobs.usage_days), so at the latest before its job goes",
    "jobs.Worker": "an hour after its last look (periodic.tidy)",
    "tenants.AuthenticatorApp": "at most one row per user that counts, and one that is being set up",
    "tenants.Passkey": "at most 20 rows per user (tenants.passkeys)",
    "tenants.PasskeyChallenge": "with its first answer, else when anyone needs another one 5 minutes later",
    "tenants.RecoveryCode": "ten rows per user, replaced by new ones (tenants.two_factor)",
    "tenants.SecurityNotice": "after 90 days; the newest 200 of each user (notices.forget)",
    "tenants.AuditEntry": "by the audit log's own rule (retention.remove_entries)",
    "tenants.AuditSeal": "kept: the chain of what was recorded, which outlives the entries",
    "tenants.GroupMapping": KEPT,
    "tenants.Membership": KEPT,
    "tenants.Project": "when its tenant's managers delete it (services.projects)",
    "tenants.ProjectChange": KEPT,
    "tenants.ProjectShare": "with its project",
    "tenants.Quota": KEPT,
    "tenants.QuotaChange": KEPT,
    "tenants.RetentionRule": KEPT,
    "tenants.SavedView": "at most 12 rows per user and tenant (services.views)",
    "tenants.Secret": KEPT,
    "tenants.Tenant": KEPT,
    "tenants.Token": "30 days after it expired (periodic.tidy)",
    "tenants.User": KEPT,
    "tenants.OneTimePassword": "at most one row per user, until a password is set",
    "tenants.Session": "when it expires or by its rule (retention.end_sessions)",
    "guardian.UserObjectPermission": WITH_ITS_JOB,
}
OWN = ("jobs", "tenants")


def test_every_table_says_what_removes_its_rows() -> None:
    """A new table must say so here, and prove it below or where it is named."""
    own = {model._meta.label for app in OWN for model in apps.get_app_config(app).get_models()}
    others = {name for name in COLLECTED if name.partition(".")[0] not in OWN}
    assert own == set(COLLECTED) - others
    assert all(apps.get_model(name) for name in others)


def _of_jobs() -> list[tuple[type[models.Model], str]]:
    """Every table that belongs to a job, with the name of its column; of logs and points, too, which have no key."""
    return [
        (model, field.name)
        for model in apps.get_app_config("jobs").get_models()
        for field in model._meta.get_fields()
        if field.concrete and field.is_relation and field.related_model is Job and model is not Job
    ]


def test_a_purged_job_leaves_no_row_in_any_table(people: People) -> None:
    job = ended(people.alice, 100)
    job_share(user=people.alice, job_id=job.pk, username="bob", permission=SharePermission.VIEW)
    Estimate.objects.create(job=job, tenant=people.vision)
    Dismissal.objects.create(job=job, tenant=people.vision, user=people.bob)
    RetentionRule.objects.create(tenant=people.vision, kind="events", days=30)
    retention.enforce()
    Promise.objects.create(job=job, bytes=0, files=1, measured_from=0)
    UsageDue.objects.create(job=job, tenant=people.vision, holds=True, n=1)
    tables = _of_jobs()
    assert {model._meta.label for model, _ in tables} >= {
        name for name, how in COLLECTED.items() if how is WITH_ITS_JOB and name.startswith("jobs.")
    }
    for model, column in tables:
        assert model.objects.filter(**{column: job}).exists(), f"nothing to purge in {model.__name__}"
    Job.objects.filter(pk=job.pk).update(deleted_at=Now() - timedelta(days=1))
    periodic.purge(job.pk)
    for model, column in tables:
        assert not model.objects.filter(**{column: job.pk}).exists(), model.__name__
    assert not UserObjectPermission.objects.filter(object_pk=job.pk).exists(), "a share of a job that is gone"


def test_a_token_goes_a_month_after_it_expired(people: People) -> None:
    for name, days in (("forgotten", 31), ("expired", 29), ("valid", -1)):
        made, _ = Token.objects.create(user=people.alice, name=name, expiry=None)
        Token.objects.filter(pk=made.pk).update(expiry=timezone.now() - timedelta(days=days))
    periodic.tidy({})
    assert set(Token.objects.values_list("name", flat=True)) == {"expired", "valid"}
