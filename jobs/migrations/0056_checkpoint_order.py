"""When a checkpoint was saved, and when a learner's step last fell back: a step may count from the beginning again."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0055_requested_files")]

    operations = [
        migrations.AddField("checkpoint", "saved_ns", models.BigIntegerField(null=True)),
        migrations.AddField("learner", "fell_ms", models.BigIntegerField(null=True)),
    ]
