"""`manage.py invariants`: re-check the rules that hold after any crash, on the live database and cluster."""

import sys
from typing import Any

from gpu_scheduler.clusters.base import ClusterError
from jobs import clusters, invariants
from portal.management.database_command import DatabaseCommand


class Command(DatabaseCommand):
    help = "Check the rules that hold after any crash. Changes nothing. Exit code 1 when one is broken."

    def handle(self, *args: Any, **options: Any) -> None:
        broken, checked = invariants.violations(), len(invariants.RULES)
        try:
            broken = [*invariants.orphans(clusters.current().observe().gangs), *broken]
            checked += 1
        except ClusterError as error:
            self.stdout.write(f"NoOrphan was not checked: {error}")
        for violation in broken:
            self.stdout.write(f"BROKEN {violation.name}: {violation.rule}")
            for line in violation.found:
                self.stdout.write(f"       {line}")
        if broken:
            self.stdout.write(f"\n{len(broken)} of {checked} rules are broken.")
            sys.exit(1)
        self.stdout.write(
            f"All {checked} rules{'' if checked > len(invariants.RULES) else ' that could be checked'} hold."
        )
