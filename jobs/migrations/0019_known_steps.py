from django.db import migrations, models


class Migration(migrations.Migration):
    """Only steps that a program stated are its steps: those of checkpoints without a manifest were guesses."""

    dependencies = [
        ("jobs", "0018_results"),
    ]

    operations = [
        migrations.AddField(
            model_name="learner",
            name="first_step",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="learner",
            name="steps_by_rule",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.RunSQL(
            "UPDATE jobs_checkpoint SET step = NULL WHERE implicit AND step IS NOT NULL",
            migrations.RunSQL.noop,
        ),
    ]
