"""`manage.py two_factor NAME --reset`: remove the second factor of a user who has lost it."""

from typing import Any

from django.core.management.base import CommandError, CommandParser

from portal.management.database_command import DatabaseCommand
from tenants import two_factor
from tenants.errors import ServiceError
from tenants.models import User
from tenants.services.users import user_two_factor_reset


class Command(DatabaseCommand):
    help = "Say whether a user has two-factor authentication, or with --reset remove it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username", metavar="NAME")
        parser.add_argument(
            "--reset",
            action="store_true",
            help="remove authenticator app, passkeys and recovery codes; end all sessions",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._run(options["username"], reset=options["reset"])
        except ServiceError as error:
            raise CommandError(error.message) from error

    def _run(self, name: str, *, reset: bool) -> None:
        if reset:
            user_two_factor_reset(user=None, username=name, by="manage.py two_factor")
        user = User.objects.filter(username=name, is_service_account=False).first()
        if user is None:
            raise CommandError(f"There is no user {name}.")
        found = two_factor.factors_of(user)
        state = "off"
        if found.on:
            app = [f"app since {found.app_since:%Y-%m-%d}"] if found.app_since else []
            keys = [f"{len(found.passkeys)} passkeys"] if found.passkeys else []
            state = f"on with {', '.join([*app, *keys])}, {found.codes_left} recovery codes left"
        self.stdout.write(f"Two-factor authentication of {name}: {state}")
