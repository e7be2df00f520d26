"""Note what has ended before usage was rolled up by day. A year of it is noted in seconds, by ranges of jobs in
transactions of their own; it is rolled up behind the start, in small steps (jobs.usage_days), and until then counted
as before, row by row. May be interrupted and repeated."""

from django.db import migrations, transaction

JOBS_BATCH = 20_000
NEXT = "SELECT max(id) FROM (SELECT id FROM jobs_job WHERE id > %s ORDER BY id LIMIT %s) AS batch"
NOTE = """
INSERT INTO jobs_usagedue (tenant_id, job_id, holds, n)
SELECT tenant_id, job_id, true, n FROM jobs_attempt
WHERE job_id > %(after)s AND job_id <= %(upto)s AND closed_at IS NOT NULL
UNION ALL
SELECT tenant_id, job_id, false, n FROM jobs_jobevent
WHERE job_id > %(after)s AND job_id <= %(upto)s AND from_state = 'QUEUED' AND to_state <> ''
ON CONFLICT DO NOTHING
"""


def note(apps, schema_editor):
    after = ""
    while True:
        with transaction.atomic(), schema_editor.connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = 0")
            cursor.execute(NEXT, [after, JOBS_BATCH])
            (upto,) = cursor.fetchone()
            if upto is None:
                return
            cursor.execute(NOTE, {"after": after, "upto": upto})
            after = upto


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("jobs", "0028_usage_days")]
    operations = [migrations.RunPython(note, migrations.RunPython.noop, elidable=True)]
