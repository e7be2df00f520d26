"""Roll-ups of metric points, so that a chart of 100,000 points does not read all of them; made of what is stored, too."""

import django.db.models.deletion
from django.db import migrations, models

SEGMENT, POINTS = 4_096, 32
FINITE = "value <> ALL ('{NaN,Infinity,-Infinity}'::float8[])"
ROLL_UP = f"""
INSERT INTO jobs_metricrollup (job_id, tenant_id, attempt, rank, name, first_seq, last_seq, points, not_finite, in_order,
    low_step, high_step, low_at, high_at, low, high, last)
SELECT job_id, tenant_id, attempt, rank, name, min(seq), max(seq), count(*), count(*) FILTER (WHERE NOT {FINITE}),
    bool_and(rises), min(step), max(step), min(at), max(at), min(value) FILTER (WHERE {FINITE}),
    max(value) FILTER (WHERE {FINITE}), (array_agg(value ORDER BY seq DESC))[1]
FROM (
    SELECT p.*, (p.seq - 1) / {SEGMENT} AS segment, (row_number() OVER run - 1) / {POINTS} AS block,
        coalesce(p.step > lag(p.step) OVER run AND p.at >= lag(p.at) OVER run, true) AS rises
    FROM jobs_metricpoint p JOIN jobs_progress g USING (job_id)
    WHERE p.seq <= g.metric_seq / {SEGMENT} * {SEGMENT}
    WINDOW run AS (PARTITION BY job_id, attempt, rank, name, (p.seq - 1) / {SEGMENT} ORDER BY p.seq)
) AS numbered
GROUP BY job_id, tenant_id, attempt, rank, name, segment, block;
UPDATE jobs_progress SET metric_rolled = metric_seq / {SEGMENT} * {SEGMENT} WHERE metric_seq >= {SEGMENT};
"""


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
        migrations.RunSQL(ROLL_UP, migrations.RunSQL.noop),
    ]
