"""Files that have not arrived whole are found without reading all rows: what they promise of the disk is summed up."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0056_checkpoint_order")]

    operations = [
        migrations.AddIndex(
            "blob",
            models.Index(fields=["id"], condition=models.Q(verified=False), name="blob_arriving"),
        )
    ]
