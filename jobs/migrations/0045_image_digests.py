"""Which image the pods of an attempt ran, whatever its tag means later. Attempts before this do not know."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0044_decided_plans")]

    operations = [
        migrations.AddField(
            "attempt", "image", models.CharField(blank=True, db_default="", max_length=500)
        ),
        migrations.AddField("attempt", "image_digests", models.JSONField(db_default=[], default=list)),
    ]
