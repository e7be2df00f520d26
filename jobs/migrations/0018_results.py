"""Results belong to the job: one set per learner, from its most recent end. Those of earlier attempts are removed.

And learners report whether their program checks for a halt.
"""

from django.db import migrations, models

EARLIER = """
DELETE FROM jobs_resultfile r USING (
  SELECT job_id, max(attempt) AS newest FROM jobs_resultfile GROUP BY job_id
) n WHERE r.job_id = n.job_id AND r.attempt < n.newest
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0017_blob_stores")]

    operations = [
        migrations.RunSQL(EARLIER, migrations.RunSQL.noop),
        migrations.RemoveConstraint(model_name="resultfile", name="result_once"),
        migrations.AddField(
            model_name="resultfile",
            name="in_code",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name="resultfile",
            name="archive",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddConstraint(
            model_name="resultfile",
            constraint=models.UniqueConstraint(fields=["job", "rank", "path"], name="result_once"),
        ),
        migrations.AddField(
            model_name="learner",
            name="checks_halt",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
