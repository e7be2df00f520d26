"""The attempt at which people wished to go back to a checkpoint: only later ones began from it for that wish."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0004_job_agent_losses")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="resume_after",
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
    ]
