"""`manage.py audit`: the audit log as JSON lines."""

from argparse import ArgumentParser
from typing import Any

from jobs.serialization import json_bytes
from portal.management.database_command import DatabaseCommand
from tenants.audit import export, sealed


class Command(DatabaseCommand):
    help = "Print the audit log as JSON lines, oldest first, with each entry's place in the chain."

    def add_arguments(self, parser: ArgumentParser) -> None:
        behind = parser.add_mutually_exclusive_group()
        behind.add_argument("--after", type=int, default=0, metavar="ID", help="only entries after this one")
        behind.add_argument(
            "--after-seal",
            type=int,
            metavar="N",
            help="only entries behind this place in the chain, in its order: misses none that is committed late",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        place = options["after_seal"]
        for entry in export(after=options["after"]) if place is None else sealed(after=place):
            self.stdout.write(json_bytes(entry).decode())
