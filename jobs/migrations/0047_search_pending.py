"""New rows of the index by which jobs are searched are pending first, in a short list."""

import django.contrib.postgres.fields
import django.contrib.postgres.indexes
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0046_blob_finishing")]

    operations = [
        migrations.SeparateDatabaseAndState(
            [
                migrations.RunSQL(
                    "ALTER INDEX job_search SET (fastupdate = on, gin_pending_list_limit = 128)",
                    "ALTER INDEX job_search SET (fastupdate = off);"
                    "ALTER INDEX job_search RESET (gin_pending_list_limit);"
                    "SELECT gin_clean_pending_list('job_search')",
                )
            ],
            [  # the index is the same, so it is not made again
                migrations.RemoveIndex("job", "job_search"),
                migrations.AddIndex(
                    "job",
                    django.contrib.postgres.indexes.GinIndex(
                        models.Func(
                            models.Value(1, output_field=models.IntegerField()),
                            models.F("tenant"),
                            models.F("owner"),
                            models.F("tags"),
                            models.F("name"),
                            function="search_terms",
                            output_field=django.contrib.postgres.fields.ArrayField(models.TextField()),
                        ),
                        condition=models.Q(("deleted_at", None)),
                        fastupdate=True,
                        gin_pending_list_limit=128,
                        name="job_search",
                    ),
                ),
            ],
        )
    ]
