"""Django's `changepassword` would set a password without a word in the audit log, and leave sessions as they are."""

from typing import Any

from django.contrib.auth.management.commands import changepassword
from django.core.management.base import CommandError


class Command(changepassword.Command):
    help = (
        "Refused: `manage.py admin NAME --reset` and the console give a one-time password, which is audited."
    )

    def execute(self, *args: Any, **options: Any) -> str | None:
        raise CommandError(
            "Use `manage.py admin NAME --reset` for a platform admin, and the page Users of the console for anyone"
            " else: both give a one-time password, and the audit log says so."
        )
