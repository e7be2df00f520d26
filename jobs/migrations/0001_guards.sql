-- What no program may break, of a fresh database. It belongs to the migration of its number: change it by a new migration only.

-- Not a model's table: a flush of the test database must not empty it. A test compares it with states.TRANSITIONS.
CREATE TABLE jobs_transition (from_state varchar(12), to_state varchar(12), PRIMARY KEY (from_state, to_state));
INSERT INTO jobs_transition VALUES
  ('QUEUED', 'DEPLOYING'), ('QUEUED', 'HALTED'), ('QUEUED', 'CANCELED'),
  ('DEPLOYING', 'DOWNLOADING'), ('DEPLOYING', 'STOPPING'),
  ('DOWNLOADING', 'PROCESSING'), ('DOWNLOADING', 'STOPPING'),
  ('PROCESSING', 'STORING'), ('PROCESSING', 'STOPPING'),
  ('STORING', 'COMPLETED'), ('STORING', 'FAILED'), ('STORING', 'STOPPING'),
  ('STOPPING', 'STORING'), ('STOPPING', 'HALTED'), ('STOPPING', 'QUEUED'), ('STOPPING', 'CANCELED'),
  ('STOPPING', 'FAILED'),
  ('HALTED', 'QUEUED'), ('HALTED', 'CANCELED');

CREATE FUNCTION jobs_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- Purging a deleted job says so for its own transaction; a removed user is forgotten as actor.
  IF TG_OP = 'DELETE' AND current_setting('luthier.purge', true) = 'on' THEN
    RETURN OLD;
  END IF;
  IF TG_OP = 'UPDATE' AND to_jsonb(NEW) - 'actor_id' = to_jsonb(OLD) - 'actor_id' AND NEW.actor_id IS NULL THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION 'the history of job % is append-only', OLD.job_id USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON jobs_jobevent FOR EACH ROW EXECUTE FUNCTION jobs_append_only();

CREATE FUNCTION jobs_attempt_closed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF to_jsonb(NEW) - 'resume_from_id' IS DISTINCT FROM to_jsonb(OLD) - 'resume_from_id' THEN
    RAISE EXCEPTION 'attempt % of job % is closed and never changes', OLD.n, OLD.job_id
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER closed BEFORE UPDATE ON jobs_attempt
  FOR EACH ROW WHEN (OLD.closed_at IS NOT NULL) EXECUTE FUNCTION jobs_attempt_closed();

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

CREATE FUNCTION jobs_blob_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO jobs_storagechange (tenant_id, kind, bytes)
      SELECT tenant_id, kind, sum(size) FROM added GROUP BY 1, 2 HAVING sum(size) <> 0;
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO jobs_storagechange (tenant_id, kind, bytes)
      SELECT tenant_id, kind, -sum(size) FROM removed GROUP BY 1, 2 HAVING sum(size) <> 0;
  ELSE
    INSERT INTO jobs_storagechange (tenant_id, kind, bytes)
      SELECT tenant_id, kind, sum(bytes) FROM (
        SELECT tenant_id, kind AS kind, size AS bytes FROM added
        UNION ALL SELECT tenant_id, kind, -size FROM removed) AS change
     GROUP BY 1, 2 HAVING sum(bytes) <> 0;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER counted_again AFTER UPDATE ON jobs_blob
  REFERENCING OLD TABLE AS removed NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION jobs_blob_counted();
CREATE TRIGGER counted_in AFTER INSERT ON jobs_blob
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION jobs_blob_counted();
CREATE TRIGGER counted_out AFTER DELETE ON jobs_blob
  REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION jobs_blob_counted();

CREATE FUNCTION jobs_legal_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM jobs_transition WHERE from_state = OLD.state AND to_state = NEW.state) THEN
    RAISE EXCEPTION 'job % may not move from % to %', NEW.id, OLD.state, NEW.state
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  IF OLD.state = 'STORING' AND NEW.state = 'STOPPING' AND NEW.stop_reason NOT IN ('cancel_requested', 'node_lost') THEN
    RAISE EXCEPTION 'job % is storing its results and may not stop for %', NEW.id, NEW.stop_reason
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER legal_move BEFORE UPDATE OF state ON jobs_job
  FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION jobs_legal_move();

CREATE FUNCTION jobs_logchunk_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO jobs_storagechange (tenant_id, kind, bytes)
      SELECT tenant_id, 'logs', sum(len) FROM added WHERE NOT tombstone GROUP BY 1, 2 HAVING sum(len) <> 0;
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO jobs_storagechange (tenant_id, kind, bytes)
      SELECT tenant_id, 'logs', -sum(len) FROM removed WHERE NOT tombstone GROUP BY 1, 2 HAVING sum(len) <> 0;
  ELSE
    INSERT INTO jobs_storagechange (tenant_id, kind, bytes)
      SELECT tenant_id, kind, sum(bytes) FROM (
        SELECT tenant_id, 'logs' AS kind, len AS bytes FROM added WHERE NOT tombstone
        UNION ALL SELECT tenant_id, 'logs', -len FROM removed WHERE NOT tombstone) AS change
     GROUP BY 1, 2 HAVING sum(bytes) <> 0;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER counted_again AFTER UPDATE ON jobs_logchunk
  REFERENCING OLD TABLE AS removed NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION jobs_logchunk_counted();
CREATE TRIGGER counted_in AFTER INSERT ON jobs_logchunk
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION jobs_logchunk_counted();
CREATE TRIGGER counted_out AFTER DELETE ON jobs_logchunk
  REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION jobs_logchunk_counted();

CREATE FUNCTION jobs_metricpoint_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO jobs_storagechange (tenant_id, kind, bytes)
      SELECT tenant_id, 'metrics', sum(250) FROM added GROUP BY 1, 2 HAVING sum(250) <> 0;
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO jobs_storagechange (tenant_id, kind, bytes)
      SELECT tenant_id, 'metrics', -sum(250) FROM removed GROUP BY 1, 2 HAVING sum(250) <> 0;
  ELSE
    INSERT INTO jobs_storagechange (tenant_id, kind, bytes)
      SELECT tenant_id, kind, sum(bytes) FROM (
        SELECT tenant_id, 'metrics' AS kind, 250 AS bytes FROM added
        UNION ALL SELECT tenant_id, 'metrics', -250 FROM removed) AS change
     GROUP BY 1, 2 HAVING sum(bytes) <> 0;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER counted_again AFTER UPDATE ON jobs_metricpoint
  REFERENCING OLD TABLE AS removed NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION jobs_metricpoint_counted();
CREATE TRIGGER counted_in AFTER INSERT ON jobs_metricpoint
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION jobs_metricpoint_counted();
CREATE TRIGGER counted_out AFTER DELETE ON jobs_metricpoint
  REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION jobs_metricpoint_counted();

CREATE FUNCTION jobs_wait_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO jobs_usagedue (tenant_id, job_id, holds, n) VALUES (NEW.tenant_id, NEW.job_id, false, NEW.n)
    ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;
CREATE TRIGGER usage_due AFTER INSERT ON jobs_jobevent
  FOR EACH ROW WHEN (NEW.from_state = 'QUEUED' AND NEW.to_state <> '') EXECUTE FUNCTION jobs_wait_ended();

-- Room in the pages for rows that change often (HOT updates).
ALTER TABLE jobs_job SET (fillfactor = 75);
ALTER TABLE jobs_attempt SET (fillfactor = 80);
ALTER TABLE jobs_learner SET (fillfactor = 80);
ALTER TABLE jobs_progress SET (fillfactor = 80);
ALTER TABLE jobs_estimate SET (fillfactor = 80);

CREATE FUNCTION jobs_limits_guard() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER limits_guard BEFORE INSERT ON jobs_attempt
  FOR EACH ROW WHEN (NEW.held) EXECUTE FUNCTION jobs_limits_guard();

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
