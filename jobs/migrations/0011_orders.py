"""The scheduler's order to stop or resize a running job, and for which waiting job the slots were freed."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0010_words")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="order_reason",
            field=models.CharField(blank=True, db_default="", max_length=24),
        ),
        migrations.AddField(
            model_name="job",
            name="order_for_job",
            field=models.CharField(blank=True, db_default="", max_length=12),
        ),
        migrations.AddField(
            model_name="job", name="order_learners", field=models.PositiveIntegerField(null=True)
        ),
        migrations.AddField(
            model_name="job", name="order_gen", field=models.BigIntegerField(db_default=0, default=0)
        ),
        migrations.AddField(
            model_name="attempt",
            name="freed_for",
            field=models.CharField(blank=True, db_default="", max_length=12),
        ),
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(
                condition=~models.Q(freed_for=""), fields=["closed_at"], name="attempt_freed_for"
            ),
        ),
    ]
