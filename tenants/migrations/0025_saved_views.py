"""Filters of the list of jobs that users keep under a name."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies = [("tenants", "0024_budgets")]

    operations = [
        migrations.CreateModel(
            name="SavedView",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=40)),
                ("filters", models.JSONField()),
                ("shared", models.BooleanField(db_default=False, default=False)),
                ("created_at", models.DateTimeField(db_default=Now())),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="views", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "ordering": [models.OrderBy(models.F("id"))],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "owner", "name"), name="view_name_once")
                ],
            },
        ),
    ]
