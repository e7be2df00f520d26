"""The newest edit of a tenant, which is its version, without reading what its people did since."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0009_search")]

    operations = [
        migrations.AddIndex(
            "auditentry",
            models.Index(
                models.F("tenant"),
                models.OrderBy(models.F("id"), descending=True),
                condition=models.Q(("action__startswith", "tenant.")),
                name="audit_edits",
            ),
        ),
    ]
