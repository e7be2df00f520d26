"""Bytes that each tenant stores. From here on triggers note what every statement stores or removes."""

import django.db.models.deletion
from django.db import migrations, models

KINDS = """
UPDATE jobs_blob b SET kind = CASE
  WHEN EXISTS (SELECT FROM jobs_checkpointfile f WHERE f.blob_id = b.id) THEN 'checkpoints'
  WHEN EXISTS (SELECT FROM jobs_resultfile f WHERE f.blob_id = b.id) THEN 'results'
  WHEN EXISTS (SELECT FROM jobs_job j WHERE j.code_id = b.id)
    OR EXISTS (SELECT FROM jobs_upload u WHERE u.blob_id = b.id) THEN 'code'
  ELSE 'checkpoints' END;
"""
COUNT = """
CREATE FUNCTION {table}_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO jobs_storagechange (tenant_id, kind, bytes)
      SELECT tenant_id, {kind}, sum({bytes}) FROM added {where} GROUP BY 1, 2 HAVING sum({bytes}) <> 0;
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO jobs_storagechange (tenant_id, kind, bytes)
      SELECT tenant_id, {kind}, -sum({bytes}) FROM removed {where} GROUP BY 1, 2 HAVING sum({bytes}) <> 0;
  ELSE
    INSERT INTO jobs_storagechange (tenant_id, kind, bytes)
      SELECT tenant_id, kind, sum(bytes) FROM (
        SELECT tenant_id, {kind} AS kind, {bytes} AS bytes FROM added {where}
        UNION ALL SELECT tenant_id, {kind}, -{bytes} FROM removed {where}) AS change
      GROUP BY 1, 2 HAVING sum(bytes) <> 0;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER counted_in AFTER INSERT ON {table} REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION {table}_counted();
CREATE TRIGGER counted_out AFTER DELETE ON {table} REFERENCING OLD TABLE AS removed
  FOR EACH STATEMENT EXECUTE FUNCTION {table}_counted();
CREATE TRIGGER counted_again AFTER UPDATE ON {table} REFERENCING OLD TABLE AS removed NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION {table}_counted();
INSERT INTO jobs_storagechange (tenant_id, kind, bytes)
  SELECT tenant_id, {kind}, sum({bytes}) FROM {table} {where} GROUP BY 1, 2 HAVING sum({bytes}) <> 0;
"""
UNCOUNT = """
DROP TRIGGER counted_in ON {table}; DROP TRIGGER counted_out ON {table}; DROP TRIGGER counted_again ON {table};
DROP FUNCTION {table}_counted();
"""
TABLES = (
    {"table": "jobs_logchunk", "kind": "'logs'", "bytes": "len", "where": "WHERE NOT tombstone"},
    # jobs.models.POINT_BYTES each
    {"table": "jobs_metricpoint", "kind": "'metrics'", "bytes": "250", "where": ""},
    {"table": "jobs_blob", "kind": "kind", "bytes": "size", "where": ""},
)


def number():
    return models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


def tenant(**more):
    return models.ForeignKey(
        to="tenants.tenant", on_delete=django.db.models.deletion.PROTECT, related_name="+", **more
    )


class Migration(migrations.Migration):
    dependencies = [("jobs", "0030_search"), ("tenants", "0012_storage_limit")]

    operations = [
        migrations.AddField(
            "blob",
            "kind",
            models.CharField(db_default="checkpoints", default="checkpoints", max_length=12),
        ),
        migrations.CreateModel(
            "StorageChange",
            [
                ("id", number()),
                ("tenant", tenant(db_constraint=False)),
                ("kind", models.CharField(max_length=12)),
                ("bytes", models.DecimalField(decimal_places=0, max_digits=40)),
            ],
        ),
        migrations.CreateModel(
            "StorageUse",
            [
                ("id", number()),
                ("tenant", tenant(db_index=False)),
                ("kind", models.CharField(max_length=12)),
                ("bytes", models.DecimalField(decimal_places=0, max_digits=40)),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("tenant", "kind"), name="storage_use_once")]
            },
        ),
        migrations.RunSQL(KINDS, migrations.RunSQL.noop),
        *(migrations.RunSQL(COUNT.format(**each), UNCOUNT.format(**each)) for each in TABLES),
    ]
