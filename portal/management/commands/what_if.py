"""Say which waiting jobs would start, and why the others would not, under limits that are only thought of."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.selectors.effects import Affected, would_start
from tenants.models import Tenant

LimitOf = tuple[str, str, int]


def limit_of(text: str) -> LimitOf:
    """TENANT:TYPE=SLOTS as its three parts."""
    who, _, slots = text.partition("=")
    tenant, _, slot_type = who.partition(":")
    if not tenant or not slot_type or not slots.isdigit():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not of the form TENANT:TYPE=SLOTS, e.g. vision-lab:a100=8"
        )
    return tenant, slot_type, int(slots)


class Command(BaseCommand):
    help = "What the scheduler would start now, with other limits or with those that stand; changes nothing."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--limit",
            type=limit_of,
            action="append",
            default=[],
            metavar="TENANT:TYPE=SLOTS",
            help="may be repeated",
        )
        parser.add_argument("--json", action="store_true", help="the same for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        limits: list[LimitOf] = options["limit"]
        known = set(Tenant.objects.values_list("slug", flat=True))
        unknown = sorted({tenant for tenant, _, _ in limits} - known)
        if unknown:
            raise CommandError(
                f"--limit: no tenant {', '.join(unknown)}; there are {', '.join(sorted(known))}."
            )
        outlook = would_start({(tenant, slot_type): slots for tenant, slot_type, slots in limits})
        if options["json"]:
            lists = {"starting": outlook.starting, "waiting": outlook.waiting}
            self.stdout.write(
                json.dumps({name: [asdict(job) for job in jobs] for name, jobs in lists.items()})
            )
            return
        self.stdout.write(f"Would start now: {len(outlook.starting_ids)}")
        self._table(outlook.starting)
        self.stdout.write(f"Would wait: {len(outlook.waiting)}")
        self._table(outlook.waiting)

    def _table(self, jobs: tuple[Affected, ...]) -> None:
        for job in jobs:
            size = f"{job.slots} {job.slot_type or 'any'}"
            self.stdout.write(f"  {job.job}  {job.tenant:20} {size:>10}  {job.name:24} {job.reason}".rstrip())
