"""What retention removed from jobs, so that it is said instead of an empty log, and no removal is done twice; and when
something that a learner sent was last stored, so that an upload that stopped is told from a slow one."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("jobs", "0024_hot_leases"), ("tenants", "0007_retention")]

    operations = [
        migrations.AddField("learner", "stored_at", models.DateTimeField(null=True)),
        migrations.CreateModel(
            name="Removal",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(max_length=12)),
                ("days", models.PositiveIntegerField(null=True)),
                ("bytes", models.BigIntegerField(null=True)),
                ("rows", models.BigIntegerField()),
                ("size", models.BigIntegerField()),
                ("begun_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("done_at", models.DateTimeField(null=True)),
                ("audited", models.BooleanField(db_default=False, default=False)),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="removals", to="jobs.job"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
        ),
        migrations.AddConstraint(
            "removal", models.UniqueConstraint(fields=("job", "kind"), name="removal_once")
        ),
        migrations.AddConstraint(
            "removal",
            models.CheckConstraint(condition=Q(days=None) ^ Q(bytes=None), name="removal_has_one_limit"),
        ),
        migrations.AddIndex(
            "removal", models.Index(fields=["begun_at"], condition=Q(done_at=None), name="removal_open")
        ),
        migrations.AddIndex(
            "removal", models.Index(fields=["tenant"], condition=Q(audited=False), name="removal_unaudited")
        ),
    ]
