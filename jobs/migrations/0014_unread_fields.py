"""Upload.used_at goes, which nothing read; an event's source has no default, because every writer names it."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0013_early_ends")]
    operations = [
        migrations.RemoveField("upload", "used_at"),
        migrations.AlterField("jobevent", "source", models.CharField(max_length=16)),
    ]
