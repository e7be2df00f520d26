"""`manage.py admin NAME`: create the first platform admin, or reset one, with a one-time password."""

from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from portal.health.diagnosis import running_url
from portal.management.database_command import DatabaseCommand
from tenants import one_time
from tenants.errors import ServiceError
from tenants.services.users import admin_of_the_shell


class Command(DatabaseCommand):
    help = (
        "Create a platform admin, or with --reset make an existing user one again, with a one-time password."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username", metavar="NAME")
        parser.add_argument("--email", default="", help="of a new admin")
        parser.add_argument(
            "--reset",
            action="store_true",
            help="an existing user: enable them, make them a platform admin, end their sessions",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        name, reset = options["username"], options["reset"]
        if reset and options["email"]:
            raise CommandError("--email is for a new admin; with --reset the address stays as it is.")
        try:
            made = admin_of_the_shell(username=name, email=options["email"], reset=reset)
        except ServiceError as error:
            wrong = error.details.get("errors") or []
            texts = [f"{each['path']} {each['message']}" for each in wrong] or [error.message]
            hint = " Use --reset for an existing user." if error.code == "name_taken" else ""
            raise CommandError(f"{'; '.join(texts)}{hint}") from error
        self.stdout.write(f"One-time password of {name}: {made.secret}")
        self.stdout.write(f"Or open: {one_time.link(name, made.secret, base=running_url())}")
        then = "asks for a new password" if settings.LUTHIER_PASSWORD_SIGN_IN else "signs in"
        self.stdout.write(f"It works once, within {one_time.VALID.days} days, and {then}.")
