"""What the scheduler reads of each waiting job stays beside its row."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0035_shares")]
    operations = [migrations.AddField("job", "resources", models.TextField(null=True))]
