"""Django's admin is gone (docs/adr/0059-no-database-admin.md): what was changed in it moves into the audit log."""

from django.db import migrations

MOVE = """
DO $$
BEGIN
  IF to_regclass('django_admin_log') IS NOT NULL THEN
    INSERT INTO tenants_auditentry (actor_id, action, target, reason, details, request_id, at)
    SELECT l.user_id, 'staff.edit', left(l.object_repr, 200), '',
           jsonb_build_object('model', t.model, 'id', l.object_id, 'message', l.change_message, 'kind',
                              CASE l.action_flag WHEN 1 THEN 'add' WHEN 2 THEN 'change' ELSE 'delete' END),
           '', l.action_time
    FROM django_admin_log l LEFT JOIN django_content_type t ON t.id = l.content_type_id ORDER BY l.id;
    DROP TABLE django_admin_log;
  END IF;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0013_sessions_and_one_time_passwords")]

    operations = [migrations.RunSQL(MOVE, migrations.RunSQL.noop)]
