"""A count of its own for agents that die early: a lost node is not the program's doing."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0003_guards")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="agent_losses",
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
    ]
