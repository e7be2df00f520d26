"""Shares know who granted them. Those of before: as the audit log has it, else the job's owner."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

FILL = """
INSERT INTO jobs_share (job_id, tenant_id, username, permission, granted_by_id)
SELECT j.id, j.tenant_id, u.username,
       CASE WHEN bool_or(p.codename = 'operate_job') THEN 'operate' ELSE 'view' END,
       coalesce((SELECT a.actor_id FROM tenants_auditentry a
                 WHERE a.action = 'job.share' AND a.target = j.id AND a.details->>'username' = u.username
                 ORDER BY a.id DESC LIMIT 1), j.owner_id)
FROM guardian_userobjectpermission g
JOIN auth_permission p ON p.id = g.permission_id AND p.codename IN ('view_job', 'operate_job')
JOIN tenants_user u ON u.id = g.user_id
JOIN jobs_job j ON j.id = g.object_pk
GROUP BY j.id, j.tenant_id, u.username, j.owner_id;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0034_metric_limits"),
        ("tenants", "0011_audit_chain"),
        ("guardian", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Share",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("username", models.CharField(max_length=150)),
                ("permission", models.CharField(max_length=12)),
                (
                    "granted_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "granted_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="shares", to="jobs.job"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("job", "username"), name="share_once")],
                "indexes": [models.Index(fields=["username"], name="share_by_username")],
            },
        ),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
    ]
