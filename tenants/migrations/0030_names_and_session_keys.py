"""What is stored of logins can sign no one in.

django-axes kept names as they were typed, passwords in the wrong field among them, and sign-ins for ever, beside the
audit log. Failures count for minutes, and are counted under other names now. Of sessions, which stay, the hash of the
key is kept.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0029_audit_guards"), ("axes", "0010_accessattemptexpiration")]
    operations = [
        migrations.RunSQL(
            "DELETE FROM axes_accessattemptexpiration; DELETE FROM axes_accessattempt;"
            " DELETE FROM axes_accesslog; DELETE FROM axes_accessfailurelog",
            migrations.RunSQL.noop,
        ),
        migrations.AlterField(
            model_name="session",
            name="session_key",
            field=models.CharField(
                max_length=64, primary_key=True, serialize=False, verbose_name="session key"
            ),
        ),
        migrations.RunSQL(
            "UPDATE tenants_session SET session_key = encode(sha256(convert_to(session_key, 'UTF8')), 'hex')",
            "DELETE FROM tenants_session",
        ),
    ]
