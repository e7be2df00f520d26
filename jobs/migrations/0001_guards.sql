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
