"""GPU-hours that a tenant can use in a calendar month. The defaults are the database's, so that code of the version before
can write rows."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0023_security_notices")]

    operations = [
        migrations.AddField("tenant", "budget_gpu_hours", models.FloatField(blank=True, null=True)),
        migrations.AddField("tenant", "budget_is_hard", models.BooleanField(db_default=True, default=True)),
        migrations.AddConstraint(
            "tenant",
            models.CheckConstraint(condition=models.Q(budget_gpu_hours__gte=0), name="budget_not_negative"),
        ),
    ]
