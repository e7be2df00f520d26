"""Roll-ups of metric points, so that a chart of 100,000 points does not read all of them. Those of what is stored are
made later, in small steps (jobs.rollups): here all points would be read under a lock of the tables."""

import django.db.models.deletion
from django.db import migrations, models

def owner(to):
    return models.ForeignKey(
        to=to,
        on_delete=django.db.models.deletion.CASCADE if to == "jobs.job" else django.db.models.deletion.PROTECT,
        related_name="+",
        db_constraint=False,
        db_index=False,
    )


class Migration(migrations.Migration):
    dependencies = [("jobs", "0025_retention"), ("tenants", "0001_initial")]

    operations = [
        migrations.AddField("progress", "metric_rolled", models.BigIntegerField(default=0)),
        migrations.CreateModel(
            name="MetricRollup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("job", owner("jobs.job")),
                ("tenant", owner("tenants.tenant")),
                ("attempt", models.PositiveIntegerField()),
                ("rank", models.PositiveIntegerField()),
                ("name", models.CharField(max_length=120)),
                ("first_seq", models.BigIntegerField()),
                ("last_seq", models.BigIntegerField()),
                ("points", models.PositiveIntegerField()),
                ("not_finite", models.PositiveIntegerField()),
                ("in_order", models.BooleanField()),
                ("low_step", models.BigIntegerField()),
                ("high_step", models.BigIntegerField()),
                ("low_at", models.DateTimeField()),
                ("high_at", models.DateTimeField()),
                ("low", models.FloatField(null=True)),
                ("high", models.FloatField(null=True)),
                ("last", models.FloatField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=["job", "name", "rank", "attempt", "first_seq"], name="rollup_once"
                    )
                ],
            },
        ),
    ]
