"""What no program may break: legal moves only, final states stay, history is only added to."""

from django.db import migrations

MOVES = """
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
"""

HISTORY = """
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
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON jobs_jobevent
  FOR EACH ROW EXECUTE FUNCTION jobs_append_only();

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
"""

DROP = """
DROP TRIGGER closed ON jobs_attempt; DROP FUNCTION jobs_attempt_closed();
DROP TRIGGER append_only ON jobs_jobevent; DROP FUNCTION jobs_append_only();
DROP TRIGGER legal_move ON jobs_job; DROP FUNCTION jobs_legal_move(); DROP TABLE jobs_transition;
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0002_relations")]
    operations = [migrations.RunSQL(MOVES + HISTORY, DROP)]
