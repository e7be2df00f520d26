"""What a spec takes beyond a usual one counts as code of its tenant: as it is kept, and as it was submitted."""

from django.db import migrations

COUNT = """
CREATE FUNCTION jobs_spec_bytes(spec jsonb, spec_text text, packages jsonb) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT greatest(0, coalesce(octet_length(spec::text), 0) + coalesce(octet_length(spec_text), 0)
    + coalesce(octet_length(packages::text), 0) - 4096)::bigint  -- jobs.storage.SPEC_FREE_BYTES
$$;
CREATE FUNCTION jobs_job_counted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE change bigint := 0;
BEGIN
  IF TG_OP <> 'DELETE' THEN
    change := jobs_spec_bytes(NEW.spec, NEW.spec_text, NEW.packages);
  END IF;
  IF TG_OP <> 'INSERT' THEN
    change := change - jobs_spec_bytes(OLD.spec, OLD.spec_text, OLD.packages);
  END IF;
  IF change <> 0 THEN
    INSERT INTO jobs_storagechange (tenant_id, kind, bytes)
      VALUES (coalesce(NEW.tenant_id, OLD.tenant_id), 'code', change);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER counted AFTER INSERT OR DELETE OR UPDATE OF spec, spec_text, packages ON jobs_job
  FOR EACH ROW EXECUTE FUNCTION jobs_job_counted();
INSERT INTO jobs_storagechange (tenant_id, kind, bytes)
  SELECT tenant_id, 'code', sum(jobs_spec_bytes(spec, spec_text, packages)) FROM jobs_job
  GROUP BY 1 HAVING sum(jobs_spec_bytes(spec, spec_text, packages)) <> 0;
"""
UNCOUNT = """
INSERT INTO jobs_storagechange (tenant_id, kind, bytes)
  SELECT tenant_id, 'code', -sum(jobs_spec_bytes(spec, spec_text, packages)) FROM jobs_job
  GROUP BY 1 HAVING sum(jobs_spec_bytes(spec, spec_text, packages)) <> 0;
DROP TRIGGER counted ON jobs_job;
DROP FUNCTION jobs_job_counted();
DROP FUNCTION jobs_spec_bytes(jsonb, text, jsonb);
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0057_arriving_files")]
    operations = [migrations.RunSQL(COUNT, UNCOUNT)]
