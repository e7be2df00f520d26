"""`manage.py doctor`: one table of the parts of this installation, and the remedy for each that fails."""

import sys
from typing import Any

from django.core.management.base import BaseCommand

from portal.health import diagnosis


class Command(BaseCommand):
    help = "Check this installation and say how to fix what is wrong. Exit code 1 if anything is."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        found = diagnosis.examine()
        width = max(len(part.name) for part in found)
        for part in found:
            mark = "FAILED" if not part.ready else "warn" if part.warnings else "ok"
            self.stdout.write(f"{mark:<6} {part.name:<{width}}  {part.reason or part.found}")
            if part.remedy and not part.ready:
                self.stdout.write(f"{'':<6} {'':<{width}}  -> {part.remedy}")
            for warning in part.warnings:
                self.stdout.write(f"{'':<6} {'':<{width}}  {warning}")
        failed = [part for part in found if not part.ready]
        if failed:
            self.stdout.write(f"\n{len(failed)} of {len(found)} need attention.")
            sys.exit(1)
        self.stdout.write("\nNo problems found.")
