"""Django's `createsuperuser` would make a platform admin of whom the audit log knows nothing."""

from typing import Any

from django.contrib.auth.management.commands import createsuperuser
from django.core.management.base import CommandError


class Command(createsuperuser.Command):
    help = "Refused: `manage.py admin NAME` creates a platform admin, with an entry in the audit log."

    def execute(self, *args: Any, **options: Any) -> str | None:
        raise CommandError(
            "Use `manage.py admin NAME`: it creates a platform admin, and the audit log says so."
        )
