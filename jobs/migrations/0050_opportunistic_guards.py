"""The database's limits, as opportunistic attempts count in them; and no version that does not know of these closes one:
it would return slots to the quota that were never taken of it, so that the tenant could use more than its limit."""

from django.db import migrations

GUARDS = """
CREATE OR REPLACE FUNCTION jobs_limits_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  of_tenant record;
  of_type record;
  job record;
  held bigint;
  live bigint;
BEGIN
  SELECT slug, user_jobs_limit, max_time_s INTO of_tenant FROM tenants_tenant WHERE id = NEW.tenant_id;
  SELECT user_limit, gang_limit INTO of_type FROM tenants_quota
    WHERE tenant_id = NEW.tenant_id AND gpu_type = NEW.slot_type;
  IF NEW.slots * NEW.learners > of_type.gang_limit THEN
    RAISE EXCEPTION 'tenant %: % % slots for one job would exceed the limit of %',
      of_tenant.slug, NEW.slots * NEW.learners, NEW.slot_type, of_type.gang_limit USING ERRCODE = 'check_violation';
  END IF;
  IF of_tenant.max_time_s IS NULL AND of_tenant.user_jobs_limit IS NULL AND of_type.user_limit IS NULL THEN
    RETURN NEW;
  END IF;
  SELECT owner_id, time_limit_s - running_s AS left_s INTO job FROM jobs_job WHERE id = NEW.job_id;
  IF of_tenant.max_time_s IS NOT NULL AND (job.left_s IS NULL OR job.left_s > of_tenant.max_time_s) THEN
    RAISE EXCEPTION 'tenant %: job % may run for longer than % s', of_tenant.slug, NEW.job_id, of_tenant.max_time_s
      USING ERRCODE = 'check_violation';
  END IF;
  IF of_tenant.user_jobs_limit IS NULL AND of_type.user_limit IS NULL THEN
    RETURN NEW;
  END IF;
  -- One admission of a tenant at a time: each must see what the one before took.
  PERFORM 1 FROM tenants_tenant WHERE id = NEW.tenant_id FOR NO KEY UPDATE;
  SELECT coalesce(sum(a.slots * a.learners) FILTER (WHERE a.slot_type = NEW.slot_type), 0), count(*) INTO held, live
    FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id
    WHERE a.tenant_id = NEW.tenant_id AND a.held AND j.owner_id = job.owner_id
      AND (NEW.opportunistic OR NOT a.opportunistic);  -- these must not keep others from starting
  IF held + NEW.slots * NEW.learners > of_type.user_limit THEN
    RAISE EXCEPTION 'tenant %: % % slots for one user would exceed the limit of %',
      of_tenant.slug, held + NEW.slots * NEW.learners, NEW.slot_type, of_type.user_limit
      USING ERRCODE = 'check_violation';
  END IF;
  IF live + 1 > of_tenant.user_jobs_limit THEN
    RAISE EXCEPTION 'tenant %: % live jobs of one user would exceed the limit of %',
      of_tenant.slug, live + 1, of_tenant.user_jobs_limit USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE OR REPLACE FUNCTION jobs_project_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  named text;
  most bigint;
  held bigint;
BEGIN
  IF NEW.opportunistic THEN
    RETURN NEW;  -- it takes nothing of what projects share
  END IF;
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
    WHERE a.tenant_id = NEW.tenant_id AND a.held AND NOT a.opportunistic AND a.slot_type = NEW.slot_type
      AND j.project = named;
  IF held + NEW.slots * NEW.learners > most THEN
    RAISE EXCEPTION 'project %: % % slots would exceed its limit of %', named, held + NEW.slots * NEW.learners,
      NEW.slot_type, most USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE FUNCTION jobs_opportunistic_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('luthier.opportunistic', true) IS DISTINCT FROM 'known' THEN
    RAISE EXCEPTION 'attempt % of job % took nothing of a quota: a process of an earlier version cannot end it',
      OLD.n, OLD.job_id USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER opportunistic_guard BEFORE UPDATE ON jobs_attempt
  FOR EACH ROW WHEN (OLD.opportunistic AND OLD.held AND NOT NEW.held) EXECUTE FUNCTION jobs_opportunistic_guard();
"""

BEFORE = """
DROP TRIGGER opportunistic_guard ON jobs_attempt;
DROP FUNCTION jobs_opportunistic_guard();
CREATE OR REPLACE FUNCTION jobs_limits_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  of_tenant record;
  of_type record;
  job record;
  held bigint;
  live bigint;
BEGIN
  SELECT slug, user_jobs_limit, max_time_s INTO of_tenant FROM tenants_tenant WHERE id = NEW.tenant_id;
  SELECT user_limit, gang_limit INTO of_type FROM tenants_quota
    WHERE tenant_id = NEW.tenant_id AND gpu_type = NEW.slot_type;
  IF NEW.slots * NEW.learners > of_type.gang_limit THEN
    RAISE EXCEPTION 'tenant %: % % slots for one job would exceed the limit of %',
      of_tenant.slug, NEW.slots * NEW.learners, NEW.slot_type, of_type.gang_limit USING ERRCODE = 'check_violation';
  END IF;
  IF of_tenant.max_time_s IS NULL AND of_tenant.user_jobs_limit IS NULL AND of_type.user_limit IS NULL THEN
    RETURN NEW;
  END IF;
  SELECT owner_id, time_limit_s - running_s AS left_s INTO job FROM jobs_job WHERE id = NEW.job_id;
  IF of_tenant.max_time_s IS NOT NULL AND (job.left_s IS NULL OR job.left_s > of_tenant.max_time_s) THEN
    RAISE EXCEPTION 'tenant %: job % may run for longer than % s', of_tenant.slug, NEW.job_id, of_tenant.max_time_s
      USING ERRCODE = 'check_violation';
  END IF;
  IF of_tenant.user_jobs_limit IS NULL AND of_type.user_limit IS NULL THEN
    RETURN NEW;
  END IF;
  -- One admission of a tenant at a time: each must see what the one before took.
  PERFORM 1 FROM tenants_tenant WHERE id = NEW.tenant_id FOR NO KEY UPDATE;
  SELECT coalesce(sum(a.slots * a.learners) FILTER (WHERE a.slot_type = NEW.slot_type), 0), count(*) INTO held, live
    FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id
    WHERE a.tenant_id = NEW.tenant_id AND a.held AND j.owner_id = job.owner_id;
  IF held + NEW.slots * NEW.learners > of_type.user_limit THEN
    RAISE EXCEPTION 'tenant %: % % slots for one user would exceed the limit of %',
      of_tenant.slug, held + NEW.slots * NEW.learners, NEW.slot_type, of_type.user_limit
      USING ERRCODE = 'check_violation';
  END IF;
  IF live + 1 > of_tenant.user_jobs_limit THEN
    RAISE EXCEPTION 'tenant %: % live jobs of one user would exceed the limit of %',
      of_tenant.slug, live + 1, of_tenant.user_jobs_limit USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE OR REPLACE FUNCTION jobs_project_guard() RETURNS trigger LANGUAGE plpgsql AS $$
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
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0049_opportunistic")]
    operations = [migrations.RunSQL(GUARDS, BEFORE)]
