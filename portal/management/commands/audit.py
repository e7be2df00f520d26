"""`manage.py audit`: the audit log as JSON lines, oldest first."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from jobs.serialization import json_bytes
from tenants.audit import export


class Command(BaseCommand):
    help = "Print the audit log as JSON lines, oldest first, with each entry's place in the chain."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--after", type=int, default=0, metavar="ID", help="only entries after this one")

    def handle(self, *args: Any, **options: Any) -> None:
        for entry in export(after=options["after"]):
            self.stdout.write(json_bytes(entry).decode())
