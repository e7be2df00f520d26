"""A tenant's limit of stored bytes."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0011_audit_chain")]
    operations = [
        migrations.AddField("tenant", "storage_limit", models.BigIntegerField(blank=True, null=True)),
        migrations.AddConstraint(
            "tenant",
            models.CheckConstraint(
                condition=models.Q(("storage_limit__gte", 0)), name="storage_limit_not_negative"
            ),
        ),
    ]
