"""`manage.py prepare`: bring the database up to date and, when it is empty, make the demo.

`manage.py up` and docker-compose.yml run it before anything else uses the database. The demo is for one's own machine:
where LUTHIER_PUBLIC_URL names another address, no default users are made. It prints one JSON object per
line: first {"applied": n, "warnings": [texts]}, then what was made, {} for nothing. It waits for a database that is
still starting.
"""

import ipaddress
import json
import logging
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandParser
from django.db import OperationalError, connection

from portal.database import roles
from portal.health.checks import pending_migrations
from portal.management.database_command import DatabaseCommand
from portal.runtimes import register_runtimes
from portal.settings.env import refuse_at_start
from tenants.models import User
from tenants.services.users import admins_locked_out

logger = logging.getLogger(__name__)

NO_WAY_IN = (
    "LUTHIER_PASSWORD_SIGN_IN: no platform admin can sign in without a password. Give one a one-time password:"
    " `manage.py admin NAME --reset`, or let one whose identity is linked sign in by single sign-on."
)
NO_DEMO = (
    "No demo users were made, because others may reach {url}. `manage.py admin NAME` makes the first platform admin;"
    " `manage.py demo` makes the demo."
)
WAIT_S = 60
POLL_S = 0.05


class Command(DatabaseCommand):
    help = "Bring the database up to date; create the demo if it is empty."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--no-demo", action="store_true", help="leave an empty database empty")

    def handle(self, *args: Any, **options: Any) -> None:
        refuse_at_start(settings.ENV)
        has_demo = find_spec("portal.demo") is not None  # an image for production has none
        wanted = not options["no_demo"] and has_demo and is_own_machine(settings.LUTHIER_PUBLIC_URL)
        if wanted:
            from portal import demo

            passwords = demo.Passwords()
        with roles.as_owner():
            wait_for_database(passwords.make_one if wanted else (lambda: False))
            pending = pending_migrations()
            if pending:
                call_command("migrate", interactive=False, verbosity=0)
            if settings.LUTHIER_OWNER_DATABASE_URL is not None:
                roles.grant(str(settings.DATABASES["default"]["USER"]))
        register_runtimes()
        # Not an error: the jobs of everyone else run on, and the remedy takes a database that is up.
        warnings = [NO_WAY_IN] if not settings.LUTHIER_PASSWORD_SIGN_IN and admins_locked_out() else []
        for warning in warnings:
            logger.warning(warning)
        self._report({"applied": pending, "warnings": warnings})
        if wanted:
            self._report(demo.first_start(passwords))
        else:
            said = not options["no_demo"] and has_demo and not User.objects.exists()
            self._report({"hint": NO_DEMO.format(url=settings.LUTHIER_PUBLIC_URL)} if said else {})

    def _report(self, line: dict[str, Any]) -> None:
        self.stdout.write(json.dumps(line))
        self.stdout.flush()


def is_own_machine(url: str) -> bool:
    """Whether browsers reach this address on the platform's own machine only."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def wait_for_database(meanwhile: Callable[[], bool]) -> None:
    """Raises OperationalError after WAIT_S. meanwhile: does a piece of other work; False if there is none."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            connection.ensure_connection()
            return
        except OperationalError:
            if time.monotonic() > deadline:
                raise
            if not meanwhile():
                time.sleep(POLL_S)
