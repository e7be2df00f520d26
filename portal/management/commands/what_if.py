"""What other limits would change: which waiting jobs would start now, or how the last days would have been."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from math import ceil
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from gpu_scheduler.policies import BadPolicy
from gpu_scheduler.policies.selection import policy_from
from jobs.humanize import duration
from jobs.selectors.demand import TooMuch
from jobs.selectors.installation import pools
from jobs.selectors.replay import MOST, SAME_S, Replay, TenantWaits, replay
from jobs.selectors.snapshot import database_now
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


def days(text: str) -> float:
    """A number of days, more than 0 and at most a year."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 366:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days from 0 to 366, e.g. 7")
    return number


def replay_lines(found: Replay) -> Iterator[str]:
    """A replay for people: how far it can be trusted, then a line for each tenant."""
    if found.same_starts is None:
        yield "Nothing was submitted or resumed and started in this time."
        return
    asked_for = "1 run was" if found.stays == 1 else f"{found.stays} runs were"
    yield (
        f"{asked_for} asked for. As the limits are now, {found.same_starts:.0%} of them start within"
        f" {SAME_S:.0f} s of when they did"
        + (f"; half are off by {found.off_s:.0f} s or less." if found.off_s is not None else ".")
    )
    if found.still_running:
        still = (
            "1 of them still runs" if found.still_running == 1 else f"{found.still_running} of them still run"
        )
        yield f"{still}: when it would end is not known, so it counts as started, not as ended."
    unknown = [
        f"{count} {one if count == 1 else many}"
        for count, one, many in (
            (found.limit_changes, "change of limits", "changes of limits"),
            (found.stops, "stop of the platform", "stops of the platform"),
            (found.never_started, "job that never started", "jobs that never started"),
        )
        if count
    ]
    if unknown:
        yield f"Not taken into account: {', '.join(unknown)}, and nodes that were others then."
    if found.plans_late_s:
        yield f"There was too much for a plan at each change: starts can be {duration(ceil(found.plans_late_s))} late."
    yield ""
    yield (
        "Waits are of the runs that start in both replays (compared); ends of those of them that end in both."
        " Not started: by now, as the limits are and with the change."
    )
    yield (
        f"{'tenant':20} {'runs':>6} {'compared':>8} {'waited':>12} {'replayed':>12} {'would wait':>12}"
        f" {'not started':>12} {'ends':>22}"
    )
    yield from map(_tenant_line, found.tenants)


def _tenant_line(each: TenantWaits) -> str:
    waits = (each.wait_s, each.replayed_wait_s, each.changed_wait_s)
    shown = " ".join(f"{'–' if wait is None else duration(round(wait)):>12}" for wait in waits)
    not_started = f"{each.replayed_not_started}, {each.not_started}"
    return f"{each.tenant:20} {each.stays:>6} {each.compared:>8} {shown} {not_started:>12} {_ends(each):>22}"


def _ends(each: TenantWaits) -> str:
    """How much later the runs end that end in both replays, and how many these are if not all that are compared."""
    if each.replayed_total_s is None or each.changed_total_s is None:
        return "none in both"
    change = each.changed_total_s - each.replayed_total_s
    which = "" if each.ended == each.compared else f" ({each.ended})"
    if abs(change) < 1:
        return f"as before{which}"
    return f"{duration(round(abs(change)))} {'later' if change > 0 else 'sooner'}{which}"


def _by_type(limits: list[LimitOf]) -> dict[tuple[str, str], int]:
    """By tenant and type; of several for one the last counts."""
    return {(tenant, slot_type): slots for tenant, slot_type, slots in limits}


def _overcommitted(
    limits: list[LimitOf], current: dict[tuple[str, str], int], capacity: dict[str, int]
) -> list[str]:
    """A sentence for each type whose limits would be refused because they sum to too much."""
    applied = [
        Applied(tenant, kind, current.get((tenant, kind), 0), slots, 0)
        for (tenant, kind), slots in _by_type(limits).items()
    ]
    try:
        totals_of(applied, capacity, settings.LUTHIER_OVERCOMMIT_MAX)
    except Overcommitted as error:
        return sorted({wrong["message"] for wrong in error.details["errors"]})
    return []


class Command(BaseCommand):
    help = (
        "Show what the scheduler would start now, or with --replay how long jobs of the last days would have waited,"
        " with the current limits or others. Changes nothing."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--limit",
            type=limit_of,
            action="append",
            default=[],
            metavar="TENANT:TYPE=SLOTS",
            help="the limit to try for a tenant and type; can be repeated",
        )
        parser.add_argument(
            "--replay",
            type=days,
            metavar="DAYS",
            help="run the last days again, as the limits are now and as --limit and --policy say",
        )
        parser.add_argument("--policy", metavar="NAME", help="with --replay: the scheduling policy to try")
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
        if options["replay"] is not None:
            self._replay(limits, notes, options)
            return
        if options["policy"]:
            raise CommandError("--policy: is for --replay DAYS.")
        outcome = would_start(_by_type(limits))
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

    def _replay(self, limits: list[LimitOf], notes: list[str], options: dict[str, Any]) -> None:
        try:
            policy = policy_from(options["policy"]) if options["policy"] else None
        except BadPolicy as error:
            raise CommandError(f"--policy: {error}.") from error
        until = database_now()
        try:
            found = replay(
                until - timedelta(days=options["replay"]),
                until,
                _by_type(limits),
                policy,
                self._progress,
            )
        except TooMuch as error:
            raise CommandError(f"--replay: more than {MOST:,} attempts; try fewer days.") from error
        if options["json"]:
            shown = asdict(found) | {"overcommitted": notes}
            self.stdout.write(json.dumps(shown, default=lambda at: at.isoformat()))
            return
        for note in notes:
            self.stdout.write(f"These limits cannot be set: {note}.")
        for line in replay_lines(found):
            self.stdout.write(line)

    _shown = -1

    def _progress(self, done: float) -> None:
        """The percent of the simulated time that is done, to stderr: over itself on a terminal, else each tenth."""
        over_itself = self.stderr.isatty()
        percent = int(done * 100) if over_itself else int(done * 10) * 10
        if percent > self._shown:
            self._shown = percent
            ending = "\r" if over_itself and percent < 100 else "\n"
            self.stderr.write(f"{percent} % of the simulated time", style_func=str, ending=ending)

    def _table(self, jobs: tuple[Affected, ...]) -> None:
        for job in jobs:
            size = f"{job.slots} {job.slot_type or 'any'}"
            self.stdout.write(f"  {job.job}  {job.tenant:20} {size:>10}  {job.name:24} {job.reason}".rstrip())
