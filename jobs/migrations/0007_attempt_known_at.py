"""Until when an attempt's learners are known to have lived: time of which nobody knew does not count."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0006_node_memory")]

    operations = [
        migrations.AddField(model_name="attempt", name="known_at", field=models.DateTimeField(null=True)),
    ]
