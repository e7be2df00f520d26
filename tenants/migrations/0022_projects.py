"""Projects: how a tenant divides its quota, with a history of changes."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models.functions import Now

ID = ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"))
CASCADE = django.db.models.deletion.CASCADE


class Migration(migrations.Migration):
    dependencies = [("tenants", "0021_passkeys")]

    operations = [
        migrations.CreateModel(
            "Project",
            [
                ID,
                ("slug", models.SlugField(max_length=40)),
                ("weight", models.PositiveIntegerField(db_default=1, default=1)),
                ("created_at", models.DateTimeField(db_default=Now())),
                (
                    "tenant",
                    models.ForeignKey(on_delete=CASCADE, related_name="projects", to="tenants.tenant"),
                ),
            ],
            options={
                "ordering": [models.OrderBy(models.F("slug"))],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "slug"), name="project_once"),
                    models.CheckConstraint(
                        condition=models.Q(("weight__gte", 1)), name="project_weight_positive"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            "ProjectShare",
            [
                ID,
                ("gpu_type", models.SlugField(max_length=40)),
                ("guarantee", models.PositiveIntegerField(default=0)),
                ("limit", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "project",
                    models.ForeignKey(on_delete=CASCADE, related_name="shares", to="tenants.project"),
                ),
            ],
            options={
                "ordering": [models.OrderBy(models.F("gpu_type"))],
                "constraints": [
                    models.UniqueConstraint(fields=("project", "gpu_type"), name="project_share_once")
                ],
            },
        ),
        migrations.CreateModel(
            "ProjectChange",
            [
                ID,
                ("project", models.SlugField(max_length=40)),
                ("gpu_type", models.SlugField(blank=True, max_length=40)),
                ("terms", models.JSONField(default=dict)),
                ("reason", models.CharField(max_length=500)),
                ("change_set", models.UUIDField(db_index=True)),
                ("at", models.DateTimeField(db_default=Now())),
                (
                    "actor",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(on_delete=CASCADE, related_name="project_changes", to="tenants.tenant"),
                ),
            ],
            options={"indexes": [models.Index(fields=["tenant", "-id"], name="project_change_by_time")]},
        ),
        migrations.RunSQL(
            "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON tenants_projectchange "
            "FOR EACH ROW EXECUTE FUNCTION tenants_append_only()",
            "DROP TRIGGER append_only ON tenants_projectchange",
        ),
    ]
