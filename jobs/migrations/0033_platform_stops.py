"""When the platform was stopped, so that it is not counted as waiting."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0032_narrow_reads")]

    operations = [
        migrations.CreateModel(
            name="PlatformStop",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("began_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField()),
            ],
            options={"indexes": [models.Index(fields=["ended_at"], name="platform_stop_by_end")]},
        ),
    ]
