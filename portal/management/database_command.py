"""What the platform's commands have in common."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from jobs.retries import database_away


class DatabaseCommand(BaseCommand):
    """A command that needs the database, and says so in one line where it does not respond."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except DatabaseError as error:
            if not database_away(error):
                raise
            reason = " ".join(str(error).split())
            raise CommandError(
                f"The database is not responding; is `manage.py up` running? {reason}"
            ) from error
