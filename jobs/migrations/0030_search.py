"""Jobs are searched by an index (tenants.search)."""

import django.contrib.postgres.fields
import django.contrib.postgres.indexes
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0029_usage_of_the_past"),
        ("tenants", "0009_search"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
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
                fastupdate=False,
                name="job_search",
            ),
        ),
    ]
