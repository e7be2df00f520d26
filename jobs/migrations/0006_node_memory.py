"""What a node says of its memory, so that a job that fits on none is refused when it is submitted."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0005_resume_after")]

    operations = [
        migrations.AddField(
            model_name="clusternode",
            name="memory_mib",
            field=models.PositiveIntegerField(null=True),
        ),
    ]
