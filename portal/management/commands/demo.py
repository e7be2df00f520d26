"""`manage.py demo`: the people of the documentation, with new one-time passwords and tokens."""

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from gpu_scheduler.clusters.base import ClusterError
from portal import demo
from portal.health.diagnosis import running_url
from portal.management.database_command import DatabaseCommand


class Command(DatabaseCommand):
    help = "Create missing demo tenants and users, set new passwords and tokens, and print them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            users = demo.make_demo()
        except ClusterError as error:
            raise CommandError(f"The cluster does not report its nodes: {error}") from error
        if options["json"]:
            self.stdout.write(json.dumps({"url": running_url(), "users": users}))
            return
        self.stdout.write(f"{running_url()}\n")
        self.stdout.write(f"{'user':<8}{'tenant':<14}{'role':<12}{'password':<24}token")
        for name, user in users.items():
            row = (
                f"{name:<8}{user['tenant'] or '-':<14}{user['role']:<12}{user['password']:<24}{user['token']}"
            )
            self.stdout.write(row)
