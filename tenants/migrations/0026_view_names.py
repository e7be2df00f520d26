"""A name is taken once among the shared views of a tenant, and by the service among those of one user."""

from django.db import migrations, models

RENAME = """
UPDATE tenants_savedview AS later SET name = left(later.name, 20) || ' ' || later.id
WHERE later.shared AND EXISTS (
    SELECT FROM tenants_savedview AS first
    WHERE first.tenant_id = later.tenant_id AND first.name = later.name AND first.shared AND first.id < later.id
)
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0025_saved_views")]

    operations = [
        migrations.RemoveConstraint(model_name="savedview", name="view_name_once"),
        migrations.RunSQL(RENAME, migrations.RunSQL.noop),
        migrations.AddConstraint(
            model_name="savedview",
            constraint=models.UniqueConstraint(
                fields=["tenant", "name"], condition=models.Q(shared=True), name="shared_view_name_once"
            ),
        ),
    ]
