"""Security notices: what happened to a user's account, on their profile and by mail."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_squashed_0022_projects")]

    operations = [
        migrations.CreateModel(
            "SecurityNotice",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", models.CharField(max_length=40)),
                ("details", models.JSONField(default=dict)),
                ("address", models.GenericIPAddressField(null=True)),
                ("at", models.DateTimeField(db_default=Now())),
                ("once", models.CharField(blank=True, db_default="", max_length=60)),
                ("to", models.CharField(blank=True, db_default="", max_length=254)),
                ("copy", models.BooleanField(default=False)),
                ("try_at", models.DateTimeField(null=True)),
                ("tries", models.PositiveSmallIntegerField(default=0)),
                ("sent_at", models.DateTimeField(null=True)),
                ("problem", models.CharField(blank=True, db_default="", max_length=200)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="security_notices",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("once", ""), _negated=True),
                        fields=("user", "once"),
                        name="security_notice_once",
                    )
                ],
                "indexes": [
                    models.Index(
                        models.F("user"), models.OrderBy(models.F("id"), descending=True),
                        name="security_notice_by_user",
                    ),
                    models.Index(
                        condition=models.Q(("try_at__isnull", False)),
                        fields=["try_at"],
                        name="security_notice_due",
                    ),
                ],
            },
        ),
    ]
