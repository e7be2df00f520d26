"""Chunks of quiet logs are merged, and logs have an index of their warnings and errors."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0026_metric_rollups")]

    operations = [
        migrations.AddField("logchunk", "packed_times", models.BinaryField(null=True)),
        # Nothing reads chunks by their number in the job, and the index took as many bytes as the key.
        migrations.RemoveIndex("logchunk", "chunk_by_seq"),
        migrations.AddField("learner", "log_merged", models.BigIntegerField(default=0, db_default=0, null=True)),
        migrations.AddIndex(
            "learner",
            models.Index("id", condition=models.Q(log_merged__isnull=False), name="learner_log_unmerged"),
        ),
        migrations.CreateModel(
            "LogIndex",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("attempt", models.PositiveIntegerField()),
                ("rank", models.PositiveIntegerField()),
                ("first_line", models.BigIntegerField()),
                ("next_line", models.BigIntegerField()),
                ("end", models.BigIntegerField()),
                ("after", models.PositiveSmallIntegerField()),
                ("warnings", models.PositiveIntegerField()),
                ("errors", models.PositiveIntegerField()),
                ("marks", models.BinaryField()),
                ("job", models.ForeignKey(
                    db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE,
                    related_name="+", to="jobs.job",
                )),
                ("tenant", models.ForeignKey(
                    db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT,
                    related_name="+", to="tenants.tenant",
                )),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("job", "attempt", "rank", "first_line"), name="log_index_once")
                ],
            },
        ),
    ]
