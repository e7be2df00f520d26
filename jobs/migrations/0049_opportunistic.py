"""Whether a job runs only on what no other job can take, and which attempts were started so. The defaults are the
database's, so that code of the version before can write rows."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0048_order_loss")]

    operations = [
        migrations.AddField("job", "opportunistic", models.BooleanField(db_default=False, default=False)),
        migrations.AddField("attempt", "opportunistic", models.BooleanField(db_default=False, default=False)),
    ]
