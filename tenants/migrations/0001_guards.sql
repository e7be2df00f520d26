-- What no program may break, of a fresh database. It belongs to the migration of its number: change it by a new migration only.

CREATE FUNCTION tenants_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- Who did it may be forgotten when a user is removed; what was done may not.
  IF TG_OP = 'UPDATE' AND to_jsonb(NEW) - 'actor_id' = to_jsonb(OLD) - 'actor_id' AND NEW.actor_id IS NULL THEN
    RETURN NEW;
  END IF;
  -- The audit log's retention rule says so for its own transaction; changes of quotas stay.
  IF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'tenants_auditentry'
     AND current_setting('luthier.audit_retention', true) = 'on' THEN
    RETURN OLD;
  END IF;
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON tenants_auditentry
  FOR EACH ROW EXECUTE FUNCTION tenants_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON tenants_quotachange
  FOR EACH ROW EXECUTE FUNCTION tenants_append_only();

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

CREATE FUNCTION tenants_quota_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  of_cohort text;
  over bigint;
BEGIN
  IF TG_OP = 'UPDATE' AND NEW.used <= OLD.used THEN
    RETURN NEW;
  END IF;
  SELECT cohort INTO of_cohort FROM tenants_tenant WHERE id = NEW.tenant_id;
  IF NEW.used > NEW."limit" AND (of_cohort = '' OR NEW.used - NEW."limit" > NEW.borrowing_limit) THEN
    RAISE EXCEPTION 'quota of tenant % for %: % slots used would exceed the limit of %',
      NEW.tenant_id, NEW.gpu_type, NEW.used, NEW."limit" USING ERRCODE = 'check_violation';
  END IF;
  IF of_cohort <> '' AND NEW.used > NEW."limit" - LEAST(NEW."limit", NEW.lending_limit) THEN
    -- One admission of a cohort and type at a time: each must see what the one before took.
    PERFORM pg_advisory_xact_lock(4770002, hashtext(of_cohort || '/' || NEW.gpu_type));
    SELECT GREATEST(0, NEW.used - (NEW."limit" - LEAST(NEW."limit", NEW.lending_limit)))
        - LEAST(NEW."limit", NEW.lending_limit)
        + coalesce(sum(GREATEST(0, q.used - (q."limit" - LEAST(q."limit", q.lending_limit)))
                       - LEAST(q."limit", q.lending_limit)), 0)
      INTO over FROM tenants_quota q JOIN tenants_tenant t ON t.id = q.tenant_id
      WHERE t.cohort = of_cohort AND q.gpu_type = NEW.gpu_type AND q.tenant_id <> NEW.tenant_id;
    IF over > 0 THEN
      RAISE EXCEPTION 'quota of tenant % for %: cohort % would use % slots more than its tenants share',
        NEW.tenant_id, NEW.gpu_type, of_cohort, over USING ERRCODE = 'check_violation';
    END IF;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER quota_guard BEFORE INSERT OR UPDATE ON tenants_quota
  FOR EACH ROW EXECUTE FUNCTION tenants_quota_guard();

CREATE FUNCTION tenants_seal_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- The audit log's retention rule marks the seals of the entries that it removes; seals themselves stay.
  IF TG_OP = 'UPDATE' AND to_jsonb(NEW) - 'removed' = to_jsonb(OLD) - 'removed' AND NEW.removed
     AND current_setting('luthier.audit_retention', true) = 'on' THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON tenants_auditseal
  FOR EACH ROW EXECUTE FUNCTION tenants_seal_guard();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON tenants_projectchange
  FOR EACH ROW EXECUTE FUNCTION tenants_append_only();
