"""Addresses of the pages; the address is the full state of a view (filters, tab, zoom, line)."""

from django.urls import path, re_path

from portal.pages import (
    audit_log,
    auth,
    cluster,
    help,
    job,
    job_manage,
    jobs,
    me,
    members,
    new_job,
    overview,
    queue,
    secrets,
    tokens,
    usage,
)
from portal.pages.admin import images, quota_history, quotas, retention, runtimes, storage, system, tenants
from portal.pages.admin import overview as admin

JOB = r"t/(?P<slug>[-a-zA-Z0-9_]+)/jobs/(?P<job_id>[0-9a-z]{12})"
_TENANT = "t/<slug:slug>/"
_ADMIN = "admin-console/"

urlpatterns = [
    path("login", auth.Login.as_view(), name="login"),
    path("logout", auth.Logout.as_view(), name="logout"),
    path("", auth.home, name="home"),
    path("t/<slug:slug>/", overview.overview, name="overview"),
    path("t/<slug:slug>/jobs", jobs.listing, name="jobs"),
    path("t/<slug:slug>/jobs/new", new_job.new_job, name="job-new"),
    *(
        path(f"t/<slug:slug>/jobs/{verb}", jobs.act_on_many, {"verb": verb}, name=f"jobs-{verb}")
        for verb in jobs.BULK
    ),
    re_path(rf"^{JOB}$", job.page, name="job"),
    re_path(rf"^{JOB}/(?P<verb>halt|resume|cancel)$", job.act_or_ask, name="job-act"),
    re_path(rf"^{JOB}/edit$", job_manage.page, name="job-edit"),
    re_path(rf"^{JOB}/(?P<manage_verb>share|unshare|delete)$", job_manage.act_or_show, name="job-manage"),
    re_path(rf"^{JOB}/(?P<tab>metrics|logs|learners|events|checkpoints|spec)$", job.page, name="job-tab"),
    path(f"{_TENANT}queue", queue.page, name="queue"),
    path(f"{_TENANT}members", members.listing, name="members"),
    path(f"{_TENANT}members/add", members.add, name="member-add"),
    path(f"{_TENANT}members/<str:username>", members.change, name="member-change"),
    path(f"{_TENANT}usage", usage.page, name="usage"),
    path(f"{_TENANT}usage.csv", usage.export, name="usage-export"),
    path(f"{_TENANT}audit", audit_log.of_tenant, name="audit"),
    path(f"{_TENANT}tokens", tokens.listing, name="tokens"),
    path(f"{_TENANT}tokens/new", tokens.create, name="token-new"),
    path(f"{_TENANT}tokens/accounts", tokens.account_add, name="account-add"),
    path(f"{_TENANT}tokens/accounts/<str:name>/close", tokens.account_close, name="account-close"),
    path(f"{_TENANT}tokens/<str:token_id>/revoke", tokens.revoke, name="token-revoke"),
    path(f"{_TENANT}secrets", secrets.listing, name="secrets"),
    path(f"{_TENANT}secrets/set", secrets.put, name="secret-set"),
    path(f"{_TENANT}secrets/delete", secrets.delete, name="secret-delete"),
    path("cluster", cluster.page, name="cluster"),
    path("help", help.page, name="help"),
    path("help/<slug:name>", help.page, name="help-guide"),
    path("me", me.page, name="me"),
    path("me/appearance", me.appearance, name="me-appearance"),
    path("me/password", me.password, name="me-password"),
    path("me/secrets", secrets.own, name="me-secrets"),
    path("me/secrets/set", secrets.own_put, name="me-secret-set"),
    path("me/secrets/delete", secrets.own_delete, name="me-secret-delete"),
    path("me/sign-out-others", me.sign_out_others, name="me-sign-out-others"),
    path(_ADMIN, admin.page, name="admin"),
    path(f"{_ADMIN}system", system.card, name="admin-system"),
    path(f"{_ADMIN}tenants", tenants.listing, name="admin-tenants"),
    path(f"{_ADMIN}tenants/new", tenants.new, name="admin-tenant-new"),
    path(f"{_ADMIN}tenants/<slug:slug>", tenants.detail, name="admin-tenant"),
    path(f"{_ADMIN}tenants/<slug:slug>/state", tenants.state, name="admin-tenant-state"),
    path(f"{_ADMIN}tenants/<slug:slug>/images", images.page, name="admin-tenant-images"),
    path(f"{_ADMIN}tenants/<slug:slug>/storage", storage.page, name="admin-tenant-storage"),
    path(f"{_ADMIN}tenants/<slug:slug>/retention", retention.page, name="admin-tenant-retention"),
    path(f"{_ADMIN}tenants/<slug:slug>/members", tenants.add_member, name="admin-tenant-member"),
    path(f"{_ADMIN}quotas", quotas.page, name="admin-quotas"),
    path(f"{_ADMIN}quota-history", quota_history.page, name="admin-quota-history"),
    path(f"{_ADMIN}quota-history.csv", quota_history.export, name="admin-quota-history-export"),
    path(f"{_ADMIN}runtimes", runtimes.page, name="admin-runtimes"),
    path(f"{_ADMIN}runtimes/<slug:slug>", runtimes.act, name="admin-runtime"),
    path(f"{_ADMIN}people", admin.people, name="admin-people"),
    path(f"{_ADMIN}audit", audit_log.of_all, name="admin-audit"),
]
