"""What a node has of CPUs and memory, and what others hold of it, so that learners are placed by all of them;
and until when a node that failed a gang is avoided."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0021_packages")]

    operations = [
        migrations.AddField("clusternode", "cpus", models.FloatField(null=True)),
        migrations.AddField("clusternode", "divided_mib", models.PositiveIntegerField(null=True)),
        migrations.AddField("clusternode", "learner_cpus", models.FloatField(default=0)),
        migrations.AddField("clusternode", "learner_mib", models.PositiveIntegerField(default=0)),
        migrations.AddField("clusternode", "others_slots", models.PositiveIntegerField(default=0)),
        migrations.AddField("clusternode", "others_cpus", models.FloatField(default=0)),
        migrations.AddField("clusternode", "others_mib", models.PositiveIntegerField(default=0)),
        migrations.AddField("clusternode", "cordoned", models.BooleanField(default=False)),
        migrations.AddField("clusternode", "unhealthy", models.PositiveIntegerField(default=0)),
        migrations.AddField("clusternode", "why", models.CharField(max_length=500, blank=True)),
        migrations.AddField("clusternode", "avoid_until", models.DateTimeField(null=True)),
        migrations.AddField("clusternode", "avoid_reason", models.CharField(max_length=500, blank=True)),
    ]
