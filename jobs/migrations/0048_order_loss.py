"""An order to stop or to resize a job carries what it was expected to cost until it is carried out."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0047_search_pending")]

    operations = [
        migrations.AddField("job", "order_loss", models.JSONField(null=True)),
    ]
