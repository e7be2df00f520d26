"""No index on the lease and the due time, which change every few seconds; room in the pages of jobs for them. An index
of the jobs on GPUs by type."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0023_year'),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name='job',
            name='job_due',
        ),
        migrations.RemoveIndex(
            model_name='job',
            name='job_leased',
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(models.F('tenant'), models.F('gpu_type'), models.OrderBy(models.F('id'), descending=True), condition=models.Q(('deleted_at', None), ('gpus__gt', 0)), name='job_by_gpu'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('settled', False)), fields=['id'], name='job_unsettled'),
        ),
        migrations.RunSQL(
            "ALTER TABLE jobs_job SET (fillfactor = 75)", "ALTER TABLE jobs_job RESET (fillfactor)"
        ),
    ]
