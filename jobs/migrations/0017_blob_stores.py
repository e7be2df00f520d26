"""What blobs need for stores that receive parts themselves, and for a delayed removal."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0016_event_source")]
    operations = [
        migrations.AddField("blob", "restarts", models.PositiveIntegerField(default=0, db_default=0)),
        migrations.AddField("blob", "upload_id", models.CharField(max_length=1024, default="", db_default="")),
        migrations.AddField("blob", "released_at", models.DateTimeField(null=True)),
    ]
