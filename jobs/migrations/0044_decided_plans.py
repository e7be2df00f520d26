"""Each plan that decided something, with what it was made from. Decisions before this have no plan."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0043_projects")]

    operations = [
        migrations.CreateModel(
            "DecidedPlan",
            [
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("policy", models.CharField(max_length=400)),
                ("program", models.CharField(max_length=64)),
                ("decided", models.JSONField()),
                ("snapshot", models.BinaryField(null=True)),
            ],
            options={"indexes": [models.Index(fields=["at"], name="decided_plan_by_time")]},
        ),
        migrations.AddField("job", "order_plan", models.JSONField(null=True)),
    ]
