"""The rack and the block of a node. The defaults are the database's, so that code of the version before can write rows."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0039_fairness")]

    operations = [
        migrations.AddField("clusternode", "rack", models.CharField(blank=True, db_default="", max_length=63)),
        migrations.AddField("clusternode", "block", models.CharField(blank=True, db_default="", max_length=63)),
    ]
