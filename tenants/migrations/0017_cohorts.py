"""Quotas that are lent: use may exceed the limit by what other tenants of the cohort lend and do not use."""

from django.db import migrations, models

GUARD = """
CREATE OR REPLACE FUNCTION tenants_quota_guard() RETURNS trigger LANGUAGE plpgsql AS $$
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
"""

BEFORE = """
CREATE OR REPLACE FUNCTION tenants_quota_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.used > NEW."limit" AND (TG_OP = 'INSERT' OR NEW.used > OLD.used) THEN
    RAISE EXCEPTION 'quota of tenant % for %: % slots used would exceed the limit of %',
      NEW.tenant_id, NEW.gpu_type, NEW.used, NEW."limit" USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0016_audit_images")]
    operations = [
        migrations.AddField(
            model_name="tenant",
            name="cohort",
            field=models.SlugField(blank=True, db_default="", default="", max_length=40),
        ),
        migrations.AddField(
            model_name="quota", name="borrowing_limit", field=models.PositiveIntegerField(blank=True, null=True)
        ),
        migrations.AddField(
            model_name="quota", name="lending_limit", field=models.PositiveIntegerField(blank=True, null=True)
        ),
        migrations.AddField(
            model_name="quota", name="weight", field=models.PositiveIntegerField(db_default=1, default=1)
        ),
        migrations.AddField(
            model_name="quotachange", name="terms", field=models.JSONField(db_default={}, default=dict)
        ),
        migrations.AddConstraint(
            model_name="quota",
            constraint=models.CheckConstraint(condition=models.Q(("weight__gte", 1)), name="quota_weight_positive"),
        ),
        migrations.RunSQL(GUARD, BEFORE),
    ]
