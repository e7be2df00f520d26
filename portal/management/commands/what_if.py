"""Show which waiting jobs would start with other limits, and why the others would wait."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.selectors.installation import pools
from jobs.selectors.what_if import Affected, would_start
from tenants.errors import Overcommitted
from tenants.models import Quota, Tenant
from tenants.services.quotas import Applied, totals_of

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


def _overcommitted(
    limits: list[LimitOf], current: dict[tuple[str, str], int], capacity: dict[str, int]
) -> list[str]:
    """A sentence for each type whose limits would be refused because they sum to too much."""
    new = {(tenant, kind): slots for tenant, kind, slots in limits}
    applied = [
        Applied(tenant, kind, current.get((tenant, kind), 0), slots, 0)
        for (tenant, kind), slots in new.items()
    ]
    try:
        totals_of(applied, capacity, settings.LUTHIER_OVERCOMMIT_MAX)
    except Overcommitted as error:
        return sorted({wrong["message"] for wrong in error.details["errors"]})
    return []


class Command(BaseCommand):
    help = "Show what the scheduler would start now, with the current limits or others. Changes nothing."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--limit",
            type=limit_of,
            action="append",
            default=[],
            metavar="TENANT:TYPE=SLOTS",
            help="the limit to try for a tenant and type; can be repeated",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        limits: list[LimitOf] = options["limit"]
        known = set(Tenant.objects.values_list("slug", flat=True))
        unknown = sorted({tenant for tenant, _, _ in limits} - known)
        if unknown:
            raise CommandError(
                f"--limit: no tenant {', '.join(unknown)}; there are {', '.join(sorted(known))}."
            )
        capacity = {kind: pool.slots for kind, pool in pools().items()}
        current = {
            (tenant, kind): limit
            for tenant, kind, limit in Quota.objects.values_list("tenant__slug", "gpu_type", "limit")
        }
        types = set(capacity) | {kind for _, kind in current}
        if foreign := sorted({slot_type for _, slot_type, _ in limits} - types):
            raise CommandError(
                f"--limit: no type {', '.join(foreign)}; there are {', '.join(sorted(types)) or 'none'}."
            )
        notes = _overcommitted(limits, current, capacity)
        outcome = would_start({(tenant, slot_type): slots for tenant, slot_type, slots in limits})
        if options["json"]:
            lists = {"starting": outcome.starting, "waiting": outcome.waiting}
            listed = {name: [asdict(job) for job in jobs] for name, jobs in lists.items()}
            self.stdout.write(json.dumps({**listed, "overcommitted": notes}))
            return
        for note in notes:
            self.stdout.write(f"These limits cannot be set: {note}.")
        self.stdout.write(f"Would start now: {len(outcome.starting_ids)}")
        self._table(outcome.starting)
        self.stdout.write(f"Would wait: {len(outcome.waiting)}")
        self._table(outcome.waiting)

    def _table(self, jobs: tuple[Affected, ...]) -> None:
        for job in jobs:
            size = f"{job.slots} {job.slot_type or 'any'}"
            self.stdout.write(f"  {job.job}  {job.tenant:20} {size:>10}  {job.name:24} {job.reason}".rstrip())
