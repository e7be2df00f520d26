"""`manage.py up`, as Django lists it; manage.py itself takes the shorter way that loads no Django."""

import argparse
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from portal.supervisor import up


class Command(BaseCommand):
    help = up.DESCRIPTION
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        up.add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        sys.exit(up.run(argparse.Namespace(**options)))
