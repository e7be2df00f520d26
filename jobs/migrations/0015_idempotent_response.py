from django.db import migrations


class Migration(migrations.Migration):
    """A name in the code only: the table keeps its own, so that processes of the version before can still use it."""

    dependencies = [
        ("jobs", "0014_upload_used_at"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RenameModel("IdempotentAnswer", "IdempotentResponse"),
                migrations.AlterModelTable("IdempotentResponse", "jobs_idempotentanswer"),
            ]
        ),
    ]
