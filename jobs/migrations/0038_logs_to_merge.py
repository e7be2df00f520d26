"""The merge of a growing log writes no index. Rewrites the table of learners, so it locks no other table meanwhile."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0037_limits_guard")]

    operations = [
        migrations.RemoveIndex("learner", "learner_log_unmerged"),
        migrations.AddField(
            "learner",
            "log_unmerged",
            models.GeneratedField(
                expression=models.Q(("log_merged__isnull", False)),
                output_field=models.BooleanField(),
                db_persist=True,
            ),
        ),
        migrations.AddIndex(
            "learner",
            models.Index("id", condition=models.Q(("log_unmerged", True)), name="learner_log_to_merge"),
        ),
    ]
