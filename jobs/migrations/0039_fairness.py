"""Sums of fairness by hour, and the past of nodes, which begins with what each node is now."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

FIRST = """
INSERT INTO jobs_nodechange (name, slot_type, slots, state)
SELECT name, slot_type, slots, CASE WHEN NOT ready THEN 'down' WHEN cordoned THEN 'cordoned' ELSE 'ready' END
FROM jobs_clusternode
"""


def number():
    return models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


def key(to, on_delete, name):
    return models.ForeignKey(to=to, on_delete=on_delete, related_name=name, db_index=False)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0038_logs_to_merge"), ("tenants", "0001_initial")]

    operations = [
        migrations.CreateModel("FairnessHour", [("at", models.DateTimeField(primary_key=True, serialize=False))]),
        migrations.CreateModel(
            "FairnessShare",
            [
                ("id", number()),
                ("hour", key("jobs.fairnesshour", django.db.models.deletion.CASCADE, "shares")),
                ("tenant", key("tenants.tenant", django.db.models.deletion.PROTECT, "+")),
                ("slot_type", models.CharField(max_length=40)),
                *(
                    (name, models.FloatField())
                    for name in ("guaranteed", "share", "received", "borrowed", "lent", "shortfall")
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("hour", "tenant", "slot_type"), name="fairness_share_once"
                    )
                ],
                "indexes": [models.Index(fields=["tenant", "hour"], name="fairness_share_of_tenant")],
            },
        ),
        migrations.CreateModel(
            "NodeChange",
            [
                ("id", number()),
                ("name", models.CharField(max_length=120)),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("slot_type", models.CharField(max_length=40)),
                ("slots", models.PositiveIntegerField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("ready", "Ready"),
                            ("cordoned", "Cordoned"),
                            ("down", "Down"),
                            ("gone", "Gone"),
                        ],
                        max_length=8,
                    ),
                ),
            ],
            options={"indexes": [models.Index(fields=["name", "at"], name="node_change_by_time")]},
        ),
        migrations.RunSQL(FIRST, migrations.RunSQL.noop),
    ]
