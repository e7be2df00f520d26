"""A policy's state is one value that only the policy reads. Queue heads keep since when they wait."""

from django.db import migrations, models
from django.db.models.functions import Now

POLICY = "fair_share"


def carry_over(apps, schema_editor):
    heads = apps.get_model("jobs", "Job").objects.filter(state="QUEUED", head_since__isnull=False)
    state = {job: since.isoformat() for job, since in heads.values_list("pk", "head_since")}
    if state:
        apps.get_model("jobs", "SchedulerState").objects.create(policy=POLICY, state=state)


def carry_back(apps, schema_editor):
    jobs = apps.get_model("jobs", "Job").objects
    for row in apps.get_model("jobs", "SchedulerState").objects.filter(policy=POLICY):
        for job, since in row.state.items():
            jobs.filter(pk=job, state="QUEUED").update(head_since=since)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0011_orders")]

    operations = [
        migrations.CreateModel(
            name="SchedulerState",
            fields=[
                ("policy", models.CharField(max_length=400, primary_key=True, serialize=False)),
                ("state", models.JSONField(default=dict)),
                ("changed_at", models.DateTimeField(db_default=Now())),
            ],
        ),
        migrations.RunPython(carry_over, carry_back),
        migrations.RemoveField("job", "head_since"),
    ]
