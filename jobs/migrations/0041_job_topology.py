"""How close a job's learners must be to each other. The default is the database's, so that code of the version before can
write rows."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0040_node_domains")]

    operations = [
        migrations.AddField("job", "topology", models.CharField(blank=True, db_default="", max_length=20)),
    ]
