"""When a checkpoint was saved, as the order of those of an attempt: a step may count from the beginning again."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0055_requested_files")]

    operations = [migrations.AddField("checkpoint", "saved_ns", models.BigIntegerField(null=True))]
