"""A waiting job fails as soon as it is known that there are no versions of its packages."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("jobs", "0052_checkpoint_now")]
    operations = [
        migrations.RunSQL(
            "INSERT INTO jobs_transition VALUES ('QUEUED', 'FAILED')",
            "DELETE FROM jobs_transition WHERE from_state = 'QUEUED' AND to_state = 'FAILED'",
        )
    ]
