"""The scheduling cycle's lease is a row, so that it needs no lock of a session and ends by itself. Checkpoints keep which
save of their step they are."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0019_known_steps")]
    operations = [
        migrations.CreateModel(
            name="SchedulingLease",
            fields=[
                ("name", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("owner", models.CharField(blank=True, max_length=80)),
                ("token", models.UUIDField(null=True)),
                ("until", models.DateTimeField(null=True)),
                ("problem", models.TextField(blank=True, db_default="")),
            ],
        ),
        migrations.AddField("checkpoint", "ordinal", models.BigIntegerField(null=True)),
    ]
