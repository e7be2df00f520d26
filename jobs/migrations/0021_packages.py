from django.db import migrations, models


class Migration(migrations.Migration):
    """A job's own packages, and the runtimes that administrators make."""

    dependencies = [
        ('jobs', '0020_faults'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='packages',
            field=models.JSONField(db_default={}, default=dict),
        ),
        migrations.AddField(
            model_name='runtime',
            name='python',
            field=models.CharField(blank=True, db_default='', max_length=8),
        ),
        migrations.AddField(
            model_name='runtime',
            name='requirements',
            field=models.JSONField(blank=True, null=True),
        ),
    ]
