"""Every path of /api/v1/. An unknown path gets the same problem document as a missing object."""

from __future__ import annotations

from django.http import HttpResponse
from django.urls import path, re_path

from portal.api import (
    cluster,
    events,
    fairness,
    files,
    groups,
    identities,
    images,
    intents,
    jobs,
    logs,
    me,
    members,
    metrics,
    projects,
    quotas,
    retention,
    runtimes,
    schema,
    secrets,
    sessions,
    shares,
    storage,
    tenants,
    users,
    waiting,
)
from portal.api.errors import NotFoundError
from portal.api.operations import Operation, operation, resource


@operation(hidden=True)
def nothing_here(call: object, rest: str) -> HttpResponse:
    """Any path that is not one of the API."""
    raise NotFoundError


EVERYWHERE: dict[str, Operation] = dict.fromkeys(("get", "post", "put", "patch", "delete"), nothing_here)

urlpatterns = [
    path("me", resource(get=me.me)),
    path("me/tokens", resource(get=me.token_list, post=me.token_create)),
    path("me/tokens/<str:token_id>", resource(delete=me.token_revoke)),
    path("me/secrets", resource(get=secrets.own_list)),
    path("me/secrets/<str:name>", resource(put=secrets.own_set, delete=secrets.own_delete)),
    path("me/memberships/<str:t>/accept", resource(post=members.member_accept)),
    path("me/sessions", resource(get=sessions.own_session_list, delete=sessions.own_sessions_end)),
    path("me/sessions/<str:session_id>", resource(delete=sessions.own_session_end)),
    path("users", resource(get=users.user_list, post=users.user_create)),
    path("users/<str:username>", resource(get=users.user_read, patch=users.user_change)),
    path("users/<str:username>/reset", resource(post=users.user_reset)),
    path("users/<str:username>/reset-two-factor", resource(post=users.user_two_factor_reset)),
    path("users/<str:username>/disable", resource(post=users.user_disable)),
    path("users/<str:username>/enable", resource(post=users.user_enable)),
    path(
        "users/<str:username>/sessions",
        resource(get=sessions.user_session_list, delete=sessions.user_sessions_end),
    ),
    path("users/<str:username>/sessions/<str:session_id>", resource(delete=sessions.user_session_end)),
    path(
        "users/<str:username>/identities",
        resource(get=identities.identity_list, post=identities.identity_link),
    ),
    path("users/<str:username>/identities/<str:identity_id>", resource(delete=identities.identity_unlink)),
    path("group-mapping", resource(get=groups.group_mapping_get, put=groups.group_mapping_set)),
    path("group-mapping:preview", resource(post=groups.group_mapping_preview)),
    path("audit", resource(get=tenants.audit_of_all)),
    path("tenants", resource(get=tenants.tenant_list, post=tenants.tenant_create)),
    path("tenants/<str:t>", resource(get=tenants.tenant_get, patch=tenants.tenant_change)),
    path("tenants/<str:t>/audit", resource(get=tenants.audit_list)),
    path("tenants/<str:t>/members", resource(get=members.member_list, post=members.member_add)),
    path(
        "tenants/<str:t>/members/<str:username>",
        resource(patch=members.member_change, delete=members.member_remove),
    ),
    path("tenants/<str:t>/service-accounts", resource(get=members.account_list, post=members.account_create)),
    path("tenants/<str:t>/service-accounts/<str:name>", resource(delete=members.account_remove)),
    path(
        "tenants/<str:t>/service-accounts/<str:name>/tokens",
        resource(get=members.account_token_list, post=members.account_token_create),
    ),
    path(
        "tenants/<str:t>/service-accounts/<str:name>/tokens/<str:token_id>",
        resource(delete=members.account_token_revoke),
    ),
    path("tenants/<str:t>/queue", resource(get=waiting.queue_list)),
    path("tenants/<str:t>/quotas", resource(get=quotas.quota_list)),
    path("tenants/<str:t>/quotas/<str:gpu_type>", resource(put=quotas.quota_set)),
    path("tenants/<str:t>/quota-changes", resource(get=quotas.quota_change_list)),
    path("tenants/<str:t>/projects", resource(get=projects.project_list)),
    path(
        "tenants/<str:t>/project-changes",
        resource(get=projects.project_change_list, post=projects.project_changes),
    ),
    path("tenants/<str:t>/project-changes/<str:change_set>/undo", resource(post=projects.project_undo)),
    path("quota-changes", resource(post=quotas.quota_changes)),
    path("tenants/<str:t>/images", resource(get=images.images_get, put=images.images_set)),
    path("tenants/<str:t>/storage", resource(get=storage.storage_get, put=storage.storage_set)),
    path("tenants/<str:t>/retention", resource(get=retention.retention_get, put=retention.retention_set)),
    path("tenants/<str:t>/retention:preview", resource(post=retention.retention_preview)),
    path("tenants/<str:t>/secrets", resource(get=secrets.secret_list)),
    path(
        "tenants/<str:t>/secrets/<str:name>", resource(put=secrets.secret_set, delete=secrets.secret_delete)
    ),
    path("tenants/<str:t>/usage", resource(get=quotas.usage_list)),
    path("tenants/<str:t>/fairness", resource(get=fairness.tenant_fairness_list)),
    path("tenants/<str:t>/fairness/history", resource(get=fairness.tenant_fairness_history)),
    path("fairness", resource(get=fairness.fairness_list)),
    path("fairness/history", resource(get=fairness.fairness_history)),
    path("tenants/<str:t>/uploads", resource(post=files.upload_create)),
    path("tenants/<str:t>/jobs:validate", resource(post=jobs.job_validate)),
    path("tenants/<str:t>/jobs", resource(post=jobs.job_create)),
    path("jobs", resource(get=jobs.jobs_list)),
    path("jobs/<str:job_id>", resource(get=jobs.job_read, patch=jobs.job_change, delete=jobs.job_remove)),
    path("jobs/<str:job_id>/halt", resource(post=intents.halt)),
    path("jobs/<str:job_id>/resume", resource(post=intents.resume)),
    path("jobs/<str:job_id>/cancel", resource(post=intents.cancel)),
    path("jobs/<str:job_id>/clone", resource(post=intents.clone)),
    path("jobs/<str:job_id>/events", resource(get=events.event_list)),
    path("jobs/<str:job_id>/attempts", resource(get=events.attempt_list)),
    path("jobs/<str:job_id>/learners", resource(get=events.learner_list)),
    path("jobs/<str:job_id>/suggestions", resource(get=waiting.suggestion_list)),
    path("jobs/<str:job_id>/spec", resource(get=events.spec_read)),
    path("jobs/<str:job_id>/logs", resource(get=logs.log_page)),
    path("jobs/<str:job_id>/logs/levels", resource(get=logs.log_levels)),
    path("jobs/<str:job_id>/logs/raw", resource(get=logs.log_raw)),
    path("jobs/<str:job_id>/metrics", resource(get=metrics.metric_series)),
    path("jobs/<str:job_id>/metrics.csv", resource(get=metrics.metric_csv_file)),
    path("jobs/<str:job_id>/checkpoints", resource(get=files.checkpoint_list)),
    path("jobs/<str:job_id>/checkpoints/<int:n>", resource(get=files.checkpoint_manifest)),
    path("jobs/<str:job_id>/checkpoints/<int:n>/files/<path:path>", resource(get=files.checkpoint_file)),
    path("jobs/<str:job_id>/results", resource(get=files.result_list)),
    path("jobs/<str:job_id>/results/<path:path>", resource(get=files.result_file)),
    path("jobs/<str:job_id>/results.zip", resource(get=files.result_zip)),
    path("jobs/<str:job_id>/code", resource(get=files.code_archive)),
    path("jobs/<str:job_id>/code/<path:path>", resource(get=files.code_file)),
    path("jobs/<str:job_id>/shares", resource(get=shares.share_list, post=shares.share_add)),
    path("jobs/<str:job_id>/shares/<str:username>", resource(delete=shares.share_remove)),
    path("cluster", resource(get=cluster.cluster_read)),
    path("cluster/nodes", resource(get=cluster.node_list)),
    path("runtimes", resource(get=runtimes.runtime_list, post=runtimes.runtime_create)),
    path("runtimes/<str:slug>", resource(patch=runtimes.runtime_change, delete=runtimes.runtime_remove)),
    path("schema/job", resource(get=cluster.job_schema)),
    path("openapi.json", resource(get=schema.openapi), name="openapi"),
    re_path(r"^(?P<rest>[\s\S]*)\Z", resource(**EVERYWHERE)),
]
