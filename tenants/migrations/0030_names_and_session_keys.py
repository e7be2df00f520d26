"""django-axes kept names as they were typed, passwords in the wrong field among them, and sign-ins for ever, beside the
audit log. Failures count for minutes, and are counted under other names now."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("tenants", "0029_audit_guards"), ("axes", "0010_accessattemptexpiration")]
    operations = [
        migrations.RunSQL(
            "DELETE FROM axes_accessattemptexpiration; DELETE FROM axes_accessattempt;"
            " DELETE FROM axes_accesslog; DELETE FROM axes_accessfailurelog",
            migrations.RunSQL.noop,
        )
    ]
