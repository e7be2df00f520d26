"""Use by day. From here on triggers note every attempt that is closed and every wait that ends, to be rolled up."""

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

TRIGGERS = """
CREATE FUNCTION jobs_attempt_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO jobs_usagedue (tenant_id, job_id, holds, n) VALUES (NEW.tenant_id, NEW.job_id, true, NEW.n)
    ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;
CREATE TRIGGER usage_due AFTER UPDATE ON jobs_attempt
  FOR EACH ROW WHEN (OLD.closed_at IS NULL AND NEW.closed_at IS NOT NULL) EXECUTE FUNCTION jobs_attempt_ended();
CREATE TRIGGER usage_due_of_closed AFTER INSERT ON jobs_attempt
  FOR EACH ROW WHEN (NEW.closed_at IS NOT NULL) EXECUTE FUNCTION jobs_attempt_ended();

CREATE FUNCTION jobs_wait_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO jobs_usagedue (tenant_id, job_id, holds, n) VALUES (NEW.tenant_id, NEW.job_id, false, NEW.n)
    ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;
CREATE TRIGGER usage_due AFTER INSERT ON jobs_jobevent
  FOR EACH ROW WHEN (NEW.from_state = 'QUEUED' AND NEW.to_state <> '') EXECUTE FUNCTION jobs_wait_ended();
"""
NO_TRIGGERS = """
DROP TRIGGER usage_due ON jobs_jobevent; DROP FUNCTION jobs_wait_ended();
DROP TRIGGER usage_due_of_closed ON jobs_attempt; DROP TRIGGER usage_due ON jobs_attempt;
DROP FUNCTION jobs_attempt_ended();
"""


def key(to, on_delete=django.db.models.deletion.PROTECT, **more):
    return models.ForeignKey(to=to, on_delete=on_delete, related_name="+", db_index=False, **more)


def number():
    return models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0027_log_upkeep"),
        ("tenants", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            "UsageDay",
            [
                ("id", number()),
                ("tenant", key("tenants.tenant")),
                ("day", models.DateField()),
                ("owner", key(settings.AUTH_USER_MODEL)),
                ("slot_type", models.CharField(max_length=40)),
                ("used", models.FloatField()),
                ("waited", models.FloatField()),
                ("lost", models.FloatField()),
                (
                    "first_waits",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(), default=list, size=None
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "day", "owner", "slot_type"), name="usage_day_once")
                ],
            },
        ),
        migrations.CreateModel(
            "UsageDue",
            [
                ("id", number()),
                ("tenant", key("tenants.tenant")),
                ("job", key("jobs.job", django.db.models.deletion.CASCADE, db_constraint=False)),
                ("holds", models.BooleanField()),
                ("n", models.BigIntegerField()),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("job", "holds", "n"), name="usage_due_once")],
                "indexes": [models.Index(fields=["tenant", "holds"], name="usage_due_by_tenant")],
            },
        ),
        migrations.RunSQL(TRIGGERS, NO_TRIGGERS),
    ]
