"""Which container images a tenant's jobs may run. Null, as for tenants that exist: as the installation says."""

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0007_retention")]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="image_patterns",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=300), blank=True, null=True, size=None
            ),
        ),
    ]
