"""An encrypted value names its algorithm. Until now there was one; processes of the version before still write by it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0026_view_names")]

    operations = [
        migrations.AddField(
            model_name=name,
            name="algorithm",
            field=models.CharField(db_default="A256GCM", max_length=16),
        )
        for name in ("authenticatorapp", "secret")
    ]
