"""An event's source has no default, because every writer names it."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0015_idempotent_response")]
    operations = [migrations.AlterField("jobevent", "source", models.CharField(max_length=16))]
