"""The attempt at which a resume from a checkpoint was requested: only later attempts start from it."""

from django.db import migrations, models


SET_RESUME_AFTER = """
UPDATE jobs_job j SET resume_after = coalesce(
    (SELECT max(a.n) - 1 FROM jobs_attempt a WHERE a.job_id = j.id AND a.resume_from_id = j.resume_from_id), j.attempt)
WHERE j.resume_from_id IS NOT NULL
"""
"""For existing requests: the attempt before the last one that started from the checkpoint, else the current one."""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0004_job_agent_losses")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="resume_after",
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.RunSQL(SET_RESUME_AFTER, migrations.RunSQL.noop),
    ]
