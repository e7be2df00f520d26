"""Limits for one user and for one job, beside those of the whole tenant."""

from django.db import migrations, models


def limit() -> models.PositiveIntegerField:
    return models.PositiveIntegerField(blank=True, null=True)


class Migration(migrations.Migration):
    dependencies = [("tenants", "0017_cohorts")]
    operations = [
        migrations.AddField(model_name="quota", name="user_limit", field=limit()),
        migrations.AddField(model_name="quota", name="gang_limit", field=limit()),
        migrations.AddField(model_name="tenant", name="user_jobs_limit", field=limit()),
        migrations.AddField(model_name="tenant", name="max_time_s", field=limit()),
    ]
