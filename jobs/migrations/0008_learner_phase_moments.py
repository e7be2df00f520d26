"""When each learner came to the phases of its start, so that the page can draw who made the gang wait."""

from django.db import migrations, models

MOMENTS = ("downloading_at", "ready_at", "processing_at")


class Migration(migrations.Migration):
    dependencies = [("jobs", "0007_attempt_known_at")]

    operations = [
        migrations.AddField(model_name="learner", name=name, field=models.DateTimeField(null=True))
        for name in MOMENTS
    ]
