"""The project of a job, and the database's refusal of a start above a project's limit, whatever the program checked."""

from django.db import migrations, models

GUARD = """
CREATE FUNCTION jobs_project_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  named text;
  most bigint;
  held bigint;
BEGIN
  SELECT project INTO named FROM jobs_job WHERE id = NEW.job_id;
  IF named = '' THEN
    RETURN NEW;
  END IF;
  SELECT s."limit" INTO most FROM tenants_projectshare s JOIN tenants_project p ON p.id = s.project_id
    WHERE p.tenant_id = NEW.tenant_id AND p.slug = named AND s.gpu_type = NEW.slot_type;
  IF most IS NULL THEN
    RETURN NEW;
  END IF;
  -- One admission of a tenant at a time: each must see what the one before took.
  PERFORM 1 FROM tenants_tenant WHERE id = NEW.tenant_id FOR NO KEY UPDATE;
  SELECT coalesce(sum(a.slots * a.learners), 0) INTO held FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id
    WHERE a.tenant_id = NEW.tenant_id AND a.held AND a.slot_type = NEW.slot_type AND j.project = named;
  IF held + NEW.slots * NEW.learners > most THEN
    RAISE EXCEPTION 'project %: % % slots would exceed its limit of %', named, held + NEW.slots * NEW.learners,
      NEW.slot_type, most USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER project_guard BEFORE INSERT ON jobs_attempt
  FOR EACH ROW WHEN (NEW.held) EXECUTE FUNCTION jobs_project_guard();
"""

DROP = "DROP TRIGGER project_guard ON jobs_attempt; DROP FUNCTION jobs_project_guard();"


class Migration(migrations.Migration):
    dependencies = [("jobs", "0042_elastic_jobs"), ("tenants", "0022_projects")]
    operations = [
        migrations.AddField(
            "job", "project", models.CharField(blank=True, db_default="", default="", max_length=40)
        ),
        migrations.RunSQL(GUARD, DROP),
    ]
