"""A file that no job had been asked for is promised to the first that is: after a restore that lacks it, say, or while
a user uploads the same bytes as code. Until then its bytes were taken off what the job's other files had promised."""

from django.db import migrations

ARRIVED = """
CREATE OR REPLACE FUNCTION jobs_blob_arrived() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  job text := OLD.requested_from->>0;
  was_open bool := job IS NOT NULL AND NOT OLD.verified;
  is_open bool := false;
  arrived bool := false;
  change bigint := CASE WHEN was_open THEN OLD.received - OLD.size ELSE 0 END;
  more int;
BEGIN
  IF TG_OP = 'UPDATE' THEN
    job := NEW.requested_from->>0;
    is_open := job IS NOT NULL AND NOT NEW.verified;
    change := change + CASE WHEN is_open THEN NEW.size - NEW.received ELSE 0 END;
    arrived := was_open AND NEW.size = OLD.size AND change <= 0;
  END IF;
  more := is_open::int - was_open::int;
  IF more > 0 THEN
    -- One that is there is locked: it may be about to be deleted by the arrival of its last file.
    INSERT INTO jobs_promise AS p (job_id, bytes, files, measured_from) VALUES (job, 0, 0, 0)
      ON CONFLICT (job_id) DO UPDATE SET files = p.files;
  END IF;
  UPDATE jobs_promise p SET bytes = p.bytes + change, files = p.files + more,
    measured_from = CASE WHEN NOT arrived THEN p.measured_from + change
      WHEN r.renews THEN p.bytes + change ELSE p.measured_from END,
    renewed_at = CASE WHEN r.renews THEN now() ELSE p.renewed_at END
  FROM (
    SELECT arrived AND k.renewed_at > now() - interval '300 seconds'  -- jobs.blobs.promised.LAPSES_S and PART
      AND (k.measured_from - k.bytes - change) * 100 >= k.measured_from AS renews
    FROM jobs_promise k WHERE k.job_id = job FOR NO KEY UPDATE) r
  WHERE p.job_id = job;
  DELETE FROM jobs_promise WHERE job_id = job AND files <= 0;
  RETURN NULL;
END $$;
DROP TRIGGER arrived ON jobs_blob;
CREATE TRIGGER arrived AFTER UPDATE OF size, received, verified, requested_from ON jobs_blob FOR EACH ROW
  WHEN (NEW.requested_from->>0 IS NOT NULL
    AND (OLD.size, OLD.received, OLD.verified, OLD.requested_from->>0)
      IS DISTINCT FROM (NEW.size, NEW.received, NEW.verified, NEW.requested_from->>0))
  EXECUTE FUNCTION jobs_blob_arrived();
DELETE FROM jobs_promise;
INSERT INTO jobs_promise (job_id, bytes, files, measured_from)
  SELECT requested_from->>0, sum(size - received), count(*), sum(size - received) FROM jobs_blob
  WHERE NOT verified AND requested_from->>0 IS NOT NULL GROUP BY 1;
"""
BEFORE = """
DROP TRIGGER arrived ON jobs_blob;
CREATE TRIGGER arrived AFTER UPDATE OF size, received, verified ON jobs_blob FOR EACH ROW
  WHEN (OLD.requested_from->>0 IS NOT NULL
    AND (OLD.size, OLD.received, OLD.verified) IS DISTINCT FROM (NEW.size, NEW.received, NEW.verified))
  EXECUTE FUNCTION jobs_blob_arrived();
"""
"""The function does what its forerunner did where no job is new in the row."""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0058_specs_and_promises")]
    operations = [migrations.RunSQL(ARRIVED, BEFORE)]
