"""The field's terms: periodic tasks, requested intents, failure classification. Rows keep their meaning."""

from django.db import migrations

EVENTS = """
ALTER TABLE jobs_jobevent DISABLE TRIGGER append_only;
UPDATE jobs_jobevent SET code = '{to}' WHERE code = '{before}';
ALTER TABLE jobs_jobevent ENABLE TRIGGER append_only;
"""
"""The history is append-only for programs; a migration renames a code without changing what was recorded."""

REASONS = """
UPDATE jobs_job SET reason_numbers = reason_numbers - '{before}'
  || jsonb_build_object('{to}', reason_numbers -> '{before}') WHERE reason_numbers ? '{before}';
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0009_checkpoints_of_one_step")]

    operations = [
        migrations.RenameModel("Duty", "PeriodicTask"),
        migrations.RenameField("learner", "evidence", "failure_details"),
        migrations.RunSQL(
            EVENTS.format(before="WISHED", to="REQUESTED"), EVENTS.format(before="REQUESTED", to="WISHED")
        ),
        migrations.RunSQL(
            REASONS.format(before="evidence", to="failure_class"),
            REASONS.format(before="failure_class", to="evidence"),
        ),
    ]
