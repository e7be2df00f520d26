"""The second lock on the door: limits hold even when a program forgets to ask."""

from django.db import migrations

QUOTA = """
CREATE FUNCTION tenants_quota_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.used > NEW."limit" AND (TG_OP = 'INSERT' OR NEW.used > OLD.used) THEN
    RAISE EXCEPTION 'quota of tenant % for %: % slots used would exceed the limit of %',
      NEW.tenant_id, NEW.gpu_type, NEW.used, NEW."limit" USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER quota_guard BEFORE INSERT OR UPDATE ON tenants_quota
  FOR EACH ROW EXECUTE FUNCTION tenants_quota_guard();

CREATE FUNCTION tenants_jobs_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.jobs_used > OLD.jobs_used AND NEW.jobs_used > NEW.jobs_limit THEN
    RAISE EXCEPTION 'tenant %: % live jobs would exceed the limit of %', NEW.slug, NEW.jobs_used, NEW.jobs_limit
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER jobs_guard BEFORE UPDATE OF jobs_used ON tenants_tenant
  FOR EACH ROW EXECUTE FUNCTION tenants_jobs_guard();
"""

HISTORY = """
CREATE FUNCTION tenants_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- Who did it may be forgotten when a user is removed; what was done may not.
  IF TG_OP = 'UPDATE' AND to_jsonb(NEW) - 'actor_id' = to_jsonb(OLD) - 'actor_id' AND NEW.actor_id IS NULL THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON tenants_quotachange
  FOR EACH ROW EXECUTE FUNCTION tenants_append_only();
"""

DROP = """
DROP TRIGGER append_only ON tenants_quotachange; DROP FUNCTION tenants_append_only();
DROP TRIGGER jobs_guard ON tenants_tenant; DROP FUNCTION tenants_jobs_guard();
DROP TRIGGER quota_guard ON tenants_quota; DROP FUNCTION tenants_quota_guard();
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_initial")]
    operations = [migrations.RunSQL(QUOTA + HISTORY, DROP)]
