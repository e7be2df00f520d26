"""Upload.used_at goes: nothing read it."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("jobs", "0013_early_ends")]
    operations = [migrations.RemoveField("upload", "used_at")]
