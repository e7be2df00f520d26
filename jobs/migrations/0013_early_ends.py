"""Job.infra_streak becomes early_ends: it counts attempts that ended early for any reason."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("jobs", "0012_scheduler_state")]
    operations = [migrations.RenameField("job", "infra_streak", "early_ends")]
