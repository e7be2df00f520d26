"""Indexes for a year of jobs: use since a time, ended waits, jobs by creation, live jobs. Room for heartbeats."""

import django.db.models.deletion
from django.db import migrations, models


# Heartbeats change no indexed column; with room in the row's page the new version stays there (HOT). Rows that exist
# stay where they are: those of live jobs move to such a page at their next change.
ROOM = "".join(
    f"ALTER TABLE {table} SET (fillfactor = 80);"
    for table in ("jobs_attempt", "jobs_learner", "jobs_progress", "jobs_estimate")
)
NO_ROOM = ROOM.replace("SET (fillfactor = 80)", "RESET (fillfactor)")


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0022_node_resources'),
    ]

    operations = [
        # Django drops every index of the column alone, the unique one of this constraint included.
        migrations.RemoveConstraint(model_name='attempt', name='attempt_one_live'),
        migrations.AlterField(
            model_name='attempt',
            name='job',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='attempts', to='jobs.job'),
        ),
        migrations.AddConstraint(
            model_name='attempt',
            constraint=models.UniqueConstraint(condition=models.Q(('closed_at__isnull', True)), fields=('job',), name='attempt_one_live'),
        ),
        migrations.AlterField(
            model_name='attempt',
            name='tenant',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.tenant'),
        ),
        migrations.AlterField(
            model_name='learner',
            name='job',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='learner_rows', to='jobs.job'),
        ),
        migrations.AlterField(
            model_name='learner',
            name='tenant',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.tenant'),
        ),
        migrations.AddIndex(
            model_name='attempt',
            index=models.Index(fields=['tenant', 'closed_at'], name='attempt_ended'),
        ),
        migrations.AddIndex(
            model_name='attempt',
            index=models.Index(condition=models.Q(('held', True)), fields=['tenant'], name='attempt_held'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['tenant', 'created_at'], include=('owner', 'state'), name='job_by_creation'),
        ),
        migrations.AddIndex(
            model_name='jobevent',
            index=models.Index(condition=models.Q(('from_state', 'QUEUED'), models.Q(('to_state', ''), _negated=True)), fields=['tenant', 'at'], name='event_left_queue'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(models.F('tenant'), models.F('state'), condition=models.Q(('deleted_at', None), ('state__in', ['DEPLOYING', 'DOWNLOADING', 'HALTED', 'PROCESSING', 'QUEUED', 'STOPPING', 'STORING'])), name='job_live'),
        ),
        migrations.RunSQL(ROOM, NO_ROOM),
    ]
