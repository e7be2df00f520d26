"""Which jobs' learners were asked for a file: no others send it, or see what has arrived of it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0054_dismissals")]

    operations = [migrations.AddField("blob", "requested_from", models.JSONField(null=True))]
