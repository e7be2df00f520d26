"""The address from which something was done, and the chain that shows a gap or a change in the audit log."""

from django.db import migrations, models

GUARD = """
CREATE FUNCTION tenants_seal_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- The audit log's retention rule marks the seals of the entries that it removes; seals themselves stay.
  IF TG_OP = 'UPDATE' AND to_jsonb(NEW) - 'removed' = to_jsonb(OLD) - 'removed' AND NEW.removed
     AND current_setting('luthier.audit_retention', true) = 'on' THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON tenants_auditseal
  FOR EACH ROW EXECUTE FUNCTION tenants_seal_guard();
"""
DROP = "DROP TRIGGER append_only ON tenants_auditseal; DROP FUNCTION tenants_seal_guard();"


class Migration(migrations.Migration):
    dependencies = [("tenants", "0010_audit_edits")]

    operations = [
        migrations.AddField("auditentry", "address", models.GenericIPAddressField(null=True)),
        migrations.CreateModel(
            name="AuditSeal",
            fields=[
                ("n", models.BigIntegerField(primary_key=True, serialize=False)),
                ("entry_id", models.BigIntegerField(unique=True)),
                ("actor_id", models.BigIntegerField(null=True)),
                ("digest", models.CharField(max_length=64)),
                ("hash", models.CharField(max_length=64)),
                ("removed", models.BooleanField(default=False)),
            ],
        ),
        migrations.RunSQL(GUARD, DROP),
    ]
