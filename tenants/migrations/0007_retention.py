"""Rules for how long a tenant's data is kept; and the audit log may be shortened, by its own rule alone."""

import django.db.models.deletion
from django.db import migrations, models

APPEND_ONLY = """
CREATE OR REPLACE FUNCTION tenants_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- Who did it may be forgotten when a user is removed; what was done may not.
  IF TG_OP = 'UPDATE' AND to_jsonb(NEW) - 'actor_id' = to_jsonb(OLD) - 'actor_id' AND NEW.actor_id IS NULL THEN
    RETURN NEW;
  END IF;
  {removal}
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
"""
REMOVAL = """-- The audit log's retention rule says so for its own transaction; changes of quotas stay.
  IF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'tenants_auditentry'
     AND current_setting('luthier.audit_retention', true) = 'on' THEN
    RETURN OLD;
  END IF;"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0006_secrets")]

    operations = [
        migrations.CreateModel(
            name="RetentionRule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(max_length=12)),
                ("days", models.PositiveIntegerField(null=True)),
                ("bytes", models.BigIntegerField(null=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="retention_rules",
                        to="tenants.tenant",
                    ),
                ),
            ],
        ),
        migrations.AddConstraint(
            "retentionrule", models.UniqueConstraint(fields=("tenant", "kind"), name="retention_rule_once")
        ),
        migrations.RunSQL(APPEND_ONLY.format(removal=REMOVAL), APPEND_ONLY.format(removal="")),
    ]
