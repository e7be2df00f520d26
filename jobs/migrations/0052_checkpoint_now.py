"""Requests for a checkpoint while the program runs, whether it would notice one, and which it has answered."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0051_usage_of_budgets")]

    operations = [
        migrations.AddField("attempt", "saves_requested", models.PositiveIntegerField(db_default=0, default=0)),
        migrations.AddField("attempt", "save_requested_at", models.DateTimeField(null=True)),
        migrations.AddField("learner", "checks_save", models.BooleanField(db_default=False, default=False)),
        migrations.AddField("learner", "saved_for", models.PositiveIntegerField(db_default=0, default=0)),
    ]
