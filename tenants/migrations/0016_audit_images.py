"""The page of a tenant's images reads its newest changes, not the whole audit log."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0015_membership_accepted")]

    operations = [
        migrations.AddIndex(
            "auditentry",
            models.Index(
                models.F("tenant"),
                models.OrderBy(models.F("id"), descending=True),
                condition=models.Q(("action", "images.change")),
                name="audit_images",
            ),
        ),
    ]
