"""How many metrics of a job are stored, and how many points were not."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0033_platform_stops")]
    operations = [
        migrations.AddField("progress", name, models.BigIntegerField(db_default=0, default=0))
        for name in ("metric_names", "metric_lost")
    ]
