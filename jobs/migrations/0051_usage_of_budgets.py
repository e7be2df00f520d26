"""What opportunistic jobs used of a day: it counts against no budget."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0050_opportunistic_guards")]

    operations = [
        migrations.AddField("usageday", "opportunistic", models.FloatField(db_default=0, default=0)),
    ]
