"""The attempt at which people wished to go back to a checkpoint: only later ones began from it for that wish."""

from django.db import migrations, models


STANDING_WISHES = """
UPDATE jobs_job j SET resume_after = coalesce(
    (SELECT max(a.n) - 1 FROM jobs_attempt a WHERE a.job_id = j.id AND a.resume_from_id = j.resume_from_id), j.attempt)
WHERE j.resume_from_id IS NOT NULL
"""
"""Of wishes that stand already: the last attempt that began from the checkpoint obeyed them, or none has yet."""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0004_job_agent_losses")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="resume_after",
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.RunSQL(STANDING_WISHES, migrations.RunSQL.noop),
    ]
