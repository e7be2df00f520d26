"""What the scheduler reads of each waiting job stays beside its row, and the merge of a growing log writes no index."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0035_shares")]

    operations = [
        migrations.AddField("job", "resources", models.TextField(null=True)),
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
