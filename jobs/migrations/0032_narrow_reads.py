"""Indexes for what read the whole history: admins' lists, usage of a part of a past day, bytes of checkpoints."""

import django.contrib.postgres.indexes
from django.db import migrations, models
from django.db.models.expressions import RawSQL

NOT_DELETED = models.Q(("deleted_at", None))


def _of_all(name, *keys):
    return migrations.AddIndex("job", models.Index(*keys, condition=NOT_DELETED, name=name))


class Migration(migrations.Migration):
    dependencies = [("jobs", "0031_storage")]

    operations = [
        migrations.AddIndex(
            "checkpoint",
            models.Index(
                fields=["tenant"],
                include=["bytes"],
                condition=models.Q(("state", "COMMITTED")),
                name="checkpoint_kept",
            ),
        ),
        _of_all("job_of_all_by_state", models.F("state"), models.OrderBy(models.F("id"), descending=True)),
        _of_all("job_of_all_by_name", models.F("name"), models.F("id")),
        _of_all(
            "job_of_all_by_priority",
            models.OrderBy(models.F("priority_rank"), descending=True),
            models.OrderBy(models.F("id"), descending=True),
        ),
        migrations.AddIndex(
            "job",
            django.contrib.postgres.indexes.GistIndex(
                RawSQL(
                    "tstzrange(least(created_at, finished_at), greatest(created_at, coalesce(finished_at, 'infinity')), '[]')",
                    [],
                ),
                name="job_life",
            ),
        ),
    ]
