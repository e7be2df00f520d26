"""What other limits would change: which waiting jobs would start now, or how the last days would have been."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from math import ceil
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from gpu_scheduler.model import Project
from gpu_scheduler.policies import BadPolicy
from gpu_scheduler.policies.selection import policy_from
from jobs.humanize import duration
from jobs.selectors.demand import TooMuch
from jobs.selectors.installation import pools
from jobs.selectors.project_effects import as_planned
from jobs.selectors.replay import MOST, SAME_S, Replay, TenantWaits, replay
from jobs.selectors.snapshot import database_now, projects
from jobs.selectors.what_if import Affected, would_start
from portal.management.database_command import DatabaseCommand
from tenants.errors import Overcommitted
from tenants.models import Quota, Tenant
from tenants.services.projects import WHOLE, Change, project_changes_tried, projects_of
from tenants.services.quotas import Applied, below_guarantees, totals_of

LimitOf = tuple[str, str, int]
ShareOf = tuple[str, str, str, int | None]


def limit_of(text: str) -> LimitOf:
    """TENANT:TYPE=SLOTS as its three parts."""
    who, _, slots = text.partition("=")
    tenant, _, slot_type = who.partition(":")
    if not tenant or not slot_type or not slots.isdigit():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not of the form TENANT:TYPE=SLOTS, e.g. vision-lab:a100=8"
        )
    return tenant, slot_type, int(slots)


def guarantee_of(text: str) -> ShareOf:
    """TENANT/PROJECT:TYPE=SLOTS as its four parts."""
    who, _, slots = text.partition("=")
    whose, _, slot_type = who.partition(":")
    tenant, _, project = whose.partition("/")
    if not (tenant and project and slot_type and slots.isdigit() and slots.isascii()):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not of the form TENANT/PROJECT:TYPE=SLOTS, e.g. vision-lab/speech:a100=8"
        )
    return tenant, project, slot_type, int(slots)


def project_limit_of(text: str) -> ShareOf:
    """The same; none in place of the slots: no limit."""
    if text.endswith("=none"):
        return (*guarantee_of(f"{text.removesuffix('none')}1")[:3], None)
    found = guarantee_of(text)
    if not found[3]:
        raise argparse.ArgumentTypeError(f"{text!r}: a limit is at least 1; none: no limit")
    return found


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


def _unsettable(
    limits: list[LimitOf],
    current: dict[tuple[str, str], int],
    capacity: dict[str, int],
    guaranteed: Mapping[tuple[str, str], int],
) -> list[str]:
    """A sentence for each type whose limits would be refused because they sum to too much, and for each limit that is
    less than what the tenant guarantees to its projects. guaranteed: the sums of those that are tried, by tenant and
    type."""
    applied = [
        Applied(tenant, kind, current.get((tenant, kind), 0), slots, 0)
        for (tenant, kind), slots in _by_type(limits).items()
    ]
    found = {wrong["message"] for wrong in below_guarantees(applied, guaranteed)}
    try:
        totals_of(applied, capacity, settings.LUTHIER_OVERCOMMIT_MAX)
    except Overcommitted as error:
        found |= {wrong["message"] for wrong in error.details["errors"]}
    return sorted(found)


def _guaranteed(shares: list[ShareOf]) -> dict[tuple[str, str], int]:
    """By tenant and type, the sum of what all its projects are guaranteed with these."""
    sums = {}
    for of in Tenant.objects.filter(slug__in={tenant for tenant, _, _, _ in shares}):
        tried = {(project, kind): slots for tenant, project, kind, slots in shares if tenant == of.slug}
        known = {key: terms.get("guarantee") for key, terms in projects_of(of).items()} | tried
        for kind in {kind for _, kind in tried}:
            sums[of.slug, kind] = sum(slots or 0 for (_, each), slots in known.items() if each == kind)
    return sums


def _refuse_unknown(option: str, named: set[str]) -> None:
    known = set(Tenant.objects.values_list("slug", flat=True))
    if unknown := sorted(named - known):
        raise CommandError(f"{option}: no tenant {', '.join(unknown)}; there are {', '.join(sorted(known))}.")


def _divided(
    shares: Mapping[str, list[ShareOf]], limits: Mapping[tuple[str, str], int]
) -> tuple[tuple[Project, ...] | None, list[str]]:
    """All projects with these shares, and a sentence for each share that cannot be set; None: nothing is tried.

    limits: those of the tenants, as they are tried.
    """
    terms: defaultdict[str, defaultdict[tuple[str, str], dict[str, int | None]]]
    terms = defaultdict(lambda: defaultdict(dict))
    for name, listed in shares.items():
        for tenant, project, slot_type, slots in listed:
            terms[tenant][project, slot_type][name] = slots
    if not terms:
        return None, []
    divided = [project for project in projects() if project.tenant not in terms]
    notes = []
    for of in Tenant.objects.filter(slug__in=terms).order_by("slug"):
        before = projects_of(of)
        changes = [Change(project, kind, tried) for (project, kind), tried in terms[of.slug].items()]
        known = [project for project, kind in before if kind == WHOLE]
        if unknown := sorted({change.project for change in changes} - set(known)):
            raise CommandError(
                f"--guarantee, --project-limit: {of.slug} has no project {', '.join(unknown)}; there are"
                f" {', '.join(sorted(known)) or 'none'}."
            )
        own = {kind: limit for (slug, kind), limit in limits.items() if slug == of.slug}
        after, wrong = project_changes_tried(changes, before, own)
        divided += as_planned(of.slug, after)
        notes += sorted({each["message"] for each in wrong})
    return tuple(divided), notes


class Command(DatabaseCommand):
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
            "--guarantee",
            type=guarantee_of,
            action="append",
            default=[],
            metavar="TENANT/PROJECT:TYPE=SLOTS",
            help="the guarantee to try for a project and type; can be repeated",
        )
        parser.add_argument(
            "--project-limit",
            type=project_limit_of,
            action="append",
            default=[],
            metavar="TENANT/PROJECT:TYPE=SLOTS",
            help="the limit to try for a project and type, or none; can be repeated",
        )
        parser.add_argument(
            "--replay",
            type=days,
            metavar="DAYS",
            help="run the last days again, as everything is set now and as the other options say",
        )
        parser.add_argument("--policy", metavar="NAME", help="with --replay: the scheduling policy to try")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        limits: list[LimitOf] = options["limit"]
        shares = {"guarantee": options["guarantee"], "limit": options["project_limit"]}
        _refuse_unknown("--limit", {tenant for tenant, _, _ in limits})
        for name, option in (("guarantee", "--guarantee"), ("limit", "--project-limit")):
            _refuse_unknown(option, {tenant for tenant, _, _, _ in shares[name]})
        capacity = {kind: pool.slots for kind, pool in pools().items()}
        current = {
            (tenant, kind): limit
            for tenant, kind, limit in Quota.objects.values_list("tenant__slug", "gpu_type", "limit")
        }
        types = set(capacity) | {kind for _, kind in current}
        of_shares = {slot_type for each in shares.values() for _, _, slot_type, _ in each}
        for option, named in (
            ("--limit", {slot_type for _, slot_type, _ in limits}),
            ("--guarantee, --project-limit", of_shares),
        ):
            if foreign := sorted(named - types):
                raise CommandError(
                    f"{option}: no type {', '.join(foreign)}; there are {', '.join(sorted(types)) or 'none'}."
                )
        divided, unsettable = _divided(shares, current | _by_type(limits))
        notes = _unsettable(limits, current, capacity, _guaranteed(options["guarantee"])) + unsettable
        if options["replay"] is not None:
            self._replay(limits, divided, notes, options)
            return
        if options["policy"]:
            raise CommandError("--policy: is for --replay DAYS.")
        outcome = would_start(_by_type(limits), divided)
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

    def _replay(
        self,
        limits: list[LimitOf],
        divided: tuple[Project, ...] | None,
        notes: list[str],
        options: dict[str, Any],
    ) -> None:
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
                divided,
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
