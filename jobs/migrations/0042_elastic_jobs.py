"""What an elastic job's attempts run with, and what is measured of them. Null for all other jobs."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0041_job_topology")]

    operations = [
        migrations.AddField("job", "measured", models.TextField(null=True)),
        migrations.AddField("attempt", "batch", models.PositiveIntegerField(null=True)),
        migrations.AddField("attempt", "micro_batch", models.PositiveIntegerField(null=True)),
        migrations.AddField("attempt", "step_s", models.FloatField(null=True)),
    ]
