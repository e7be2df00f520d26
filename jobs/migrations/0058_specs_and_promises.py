"""What a spec takes beyond a usual one counts as code of its tenant: as it is kept, and as it was submitted.

And a row per job of what its accepted files have still to fill of the disk, which triggers keep.
"""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models.functions import Now

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


PROMISES = """
CREATE FUNCTION jobs_blob_offered() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO jobs_promise AS p (job_id, bytes, files, measured_from)
    SELECT requested_from->>0, sum(size - received), count(*), sum(size - received) FROM added
    WHERE NOT verified AND requested_from->>0 IS NOT NULL GROUP BY 1 ORDER BY 1
  ON CONFLICT (job_id) DO UPDATE SET bytes = p.bytes + EXCLUDED.bytes, files = p.files + EXCLUDED.files,
    measured_from = p.measured_from + EXCLUDED.measured_from;  -- an offer renews nothing
  RETURN NULL;
END $$;
CREATE FUNCTION jobs_blob_arrived() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  job text := OLD.requested_from->>0;
  before bigint := CASE WHEN OLD.verified THEN 0 ELSE OLD.size - OLD.received END;
  after bigint := 0;
  more int := -(NOT OLD.verified)::int;
  arrived bool := false;
BEGIN
  IF TG_OP = 'UPDATE' THEN
    after := CASE WHEN NEW.verified THEN 0 ELSE NEW.size - NEW.received END;
    more := more + (NOT NEW.verified)::int;
    arrived := NEW.size = OLD.size AND after <= before;
  END IF;
  IF more > 0 THEN
    INSERT INTO jobs_promise (job_id, bytes, files, measured_from) VALUES (job, 0, 0, 0) ON CONFLICT DO NOTHING;
  END IF;
  UPDATE jobs_promise p SET bytes = p.bytes + after - before, files = p.files + more,
    measured_from = CASE WHEN NOT arrived THEN p.measured_from + after - before
      WHEN r.renews THEN p.bytes + after - before ELSE p.measured_from END,
    renewed_at = CASE WHEN r.renews THEN now() ELSE p.renewed_at END
  FROM (
    SELECT arrived AND k.renewed_at > now() - interval '300 seconds'  -- jobs.blobs.promised.LAPSES_S and PART
      AND (k.measured_from - k.bytes - after + before) * 100 >= k.measured_from AS renews
    FROM jobs_promise k WHERE k.job_id = job FOR NO KEY UPDATE) r
  WHERE p.job_id = job;
  DELETE FROM jobs_promise WHERE job_id = job AND files <= 0;
  RETURN NULL;
END $$;
CREATE TRIGGER offered AFTER INSERT ON jobs_blob REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION jobs_blob_offered();
CREATE TRIGGER arrived AFTER UPDATE OF size, received, verified ON jobs_blob FOR EACH ROW
  WHEN (OLD.requested_from->>0 IS NOT NULL
    AND (OLD.size, OLD.received, OLD.verified) IS DISTINCT FROM (NEW.size, NEW.received, NEW.verified))
  EXECUTE FUNCTION jobs_blob_arrived();
CREATE TRIGGER given_up AFTER DELETE ON jobs_blob FOR EACH ROW
  WHEN (NOT OLD.verified AND OLD.requested_from->>0 IS NOT NULL) EXECUTE FUNCTION jobs_blob_arrived();
INSERT INTO jobs_promise (job_id, bytes, files, measured_from)
  SELECT requested_from->>0, sum(size - received), count(*), sum(size - received) FROM jobs_blob
  WHERE NOT verified AND requested_from->>0 IS NOT NULL GROUP BY 1;
"""
NO_PROMISES = """
DROP TRIGGER offered ON jobs_blob; DROP TRIGGER arrived ON jobs_blob; DROP TRIGGER given_up ON jobs_blob;
DROP FUNCTION jobs_blob_offered(); DROP FUNCTION jobs_blob_arrived();
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0057_arriving_files")]
    operations = [
        migrations.RunSQL(COUNT, UNCOUNT),
        migrations.CreateModel(
            "Promise",
            [
                (
                    "job",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="jobs.job",
                    ),
                ),
                ("bytes", models.BigIntegerField()),
                ("files", models.IntegerField()),
                ("measured_from", models.BigIntegerField()),
                ("renewed_at", models.DateTimeField(db_default=Now())),
            ],
        ),
        migrations.RunSQL(PROMISES, NO_PROMISES),
    ]
