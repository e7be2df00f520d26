"""Sessions that know their user, one-time passwords, and service accounts that cannot log in whatever a program does."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

NO_LOGIN = """
UPDATE tenants_user SET password = '!' || md5(random()::text), is_superuser = false, is_staff = false
WHERE is_service_account AND (password NOT LIKE '!%' OR is_superuser);
"""
# Those of before do not say whose they are, so they could not be listed or ended: everybody signs in again.
DROP = "DROP TABLE IF EXISTS django_session;"

USER = models.OneToOneField(
    on_delete=django.db.models.deletion.CASCADE,
    related_name="one_time_password",
    to=settings.AUTH_USER_MODEL,
)


class Migration(migrations.Migration):
    dependencies = [("tenants", "0012_storage_limit")]

    operations = [
        migrations.CreateModel(
            name="OneTimePassword",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("user", USER),
                ("digest", models.CharField(max_length=64)),
                ("expires_at", models.DateTimeField()),
                ("used_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Session",
            fields=[
                (
                    "session_key",
                    models.CharField("session key", max_length=40, primary_key=True, serialize=False),
                ),
                ("session_data", models.TextField("session data")),
                ("expire_date", models.DateTimeField("expire date", db_index=True)),
                (
                    "user",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="sessions",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("address", models.GenericIPAddressField(null=True)),
                ("agent", models.CharField(blank=True, max_length=300)),
                ("started_at", models.DateTimeField()),
                ("seen_at", models.DateTimeField()),
            ],
            options={"verbose_name": "session", "verbose_name_plural": "sessions", "abstract": False},
        ),
        migrations.RunSQL(NO_LOGIN, migrations.RunSQL.noop),
        migrations.AddConstraint(
            "user",
            models.CheckConstraint(
                condition=models.Q(
                    ("is_service_account", False),
                    models.Q(("password__startswith", "!"), ("is_superuser", False)),
                    _connector="OR",
                ),
                name="service_account_without_login",
            ),
        ),
        migrations.RunSQL(DROP, migrations.RunSQL.noop),
    ]
