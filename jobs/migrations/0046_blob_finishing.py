"""When the store was asked to make one object of a file's parts: it may take minutes."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0045_image_digests")]

    operations = [migrations.AddField("blob", "finishing_at", models.DateTimeField(null=True))]
