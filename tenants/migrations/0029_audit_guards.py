"""An entry of the audit log forgets its actor only with the user. What retention removed before is recorded in one sum."""

from django.db import migrations

GUARD = """
CREATE FUNCTION tenants_actor_is_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM tenants_user u WHERE u.id = OLD.actor_id) THEN
    RAISE EXCEPTION '% is append-only: user % exists', TG_TABLE_NAME, OLD.actor_id
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NULL;
END $$;
-- At the end of the transaction: Django empties the references before it removes the user.
CREATE CONSTRAINT TRIGGER actor_is_gone AFTER UPDATE ON tenants_auditentry DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.actor_id IS NOT NULL AND NEW.actor_id IS NULL) EXECUTE FUNCTION tenants_actor_is_gone();
"""
DROP = "DROP TRIGGER actor_is_gone ON tenants_auditentry; DROP FUNCTION tenants_actor_is_gone();"

# Until now retention removed its own entries, too. Seals that are marked must be found in those that are left.
BASELINE = """
INSERT INTO tenants_auditentry (action, target, reason, details, request_id)
SELECT 'retention.audit', '', '', jsonb_build_object('entries', marked - recorded, 'before', 'this version'), ''
FROM (SELECT count(*) AS marked FROM tenants_auditseal WHERE removed) m,
  (SELECT coalesce(sum((details->>'entries')::bigint), 0) AS recorded FROM tenants_auditentry
   WHERE action = 'retention.audit' AND jsonb_typeof(details->'entries') = 'number') r
WHERE marked > recorded;
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0027_sealed_by")]
    operations = [
        migrations.RunSQL(GUARD, DROP),
        migrations.RunSQL(BASELINE, migrations.RunSQL.noop),
    ]
