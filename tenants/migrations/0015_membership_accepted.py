"""Members accept that others see their e-mail address. Those of before were seen already."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0014_without_the_database_admin")]

    operations = [
        migrations.AddField("membership", "accepted_at", models.DateTimeField(null=True)),
        migrations.RunSQL(
            "UPDATE tenants_membership SET accepted_at = created_at", migrations.RunSQL.noop
        ),
    ]
