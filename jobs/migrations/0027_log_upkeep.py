"""Chunks of quiet logs are merged, and logs have an index of their warnings and errors."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0022_node_resources")]

    operations = [
        migrations.AddField("logchunk", "packed_times", models.BinaryField(null=True)),
        # Nothing reads chunks by their number in the job, and the index took as many bytes as the key.
        migrations.RemoveIndex("logchunk", "chunk_by_seq"),
        migrations.AddField("learner", "log_merged", models.BigIntegerField(default=0, db_default=0, null=True)),
        migrations.AddIndex(
            "learner",
            models.Index("id", condition=models.Q(log_merged__isnull=False), name="learner_log_unmerged"),
        ),
    ]
