"""Make stored plans again from their snapshots, and say whether they decide the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from string import hexdigits
from typing import Any

from django.core.management.base import CommandError, CommandParser

from jobs.humanize import slot_time
from jobs.selectors.decisions import Checked, Verdict, check_newest
from portal.management.database_command import DatabaseCommand

MOST = 10_000
WORDS = {
    Verdict.SAME: "the same",
    Verdict.CHANGED: "decided otherwise by the version or the policy of now",
    Verdict.DIFFERENT: "decided otherwise although nothing has changed",
    Verdict.DAMAGED: "with a snapshot that is not the one of its digest",
    Verdict.UNREADABLE: "of another version, not readable",
    Verdict.GONE: "whose snapshot is not kept",
}
WRONG = (Verdict.DIFFERENT, Verdict.DAMAGED)
"""What must not happen."""


class Command(DatabaseCommand):
    help = (
        "Plan again what was planned, from the snapshots that are kept, and say whether the decisions are those that"
        " are stored. Changes nothing. Fails if a snapshot is damaged, or gives other decisions by the same program."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--newest", type=int, default=100, metavar="N", help="how many plans; default: 100"
        )
        parser.add_argument("--job", default="", help="only plans that decided something for this job")
        parser.add_argument(
            "--snapshot",
            default="",
            metavar="DIGEST",
            help="only plans of snapshots whose digest begins like this, as the cluster's timeline shows it",
        )
        parser.add_argument("--json", action="store_true", help="print JSON, a line for each plan")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 1 <= options["newest"] <= MOST:
            raise CommandError(f"--newest: a number from 1 to {MOST:,}.")
        found: Counter[Verdict] = Counter()
        if not all(letter in hexdigits for letter in options["snapshot"]):
            raise CommandError("--snapshot: a digest, or how it begins: digits, and letters from a to f.")
        for each in check_newest(options["newest"], options["job"], options["snapshot"].lower()):
            found[each.verdict] += 1
            if options["json"]:
                self.stdout.write(json.dumps(asdict(each) | {"at": each.at.isoformat()}))
            else:
                self.stdout.write(_line(each))
        if not options["json"]:
            self.stdout.write(_sum(found))
        if wrong := sum(found[verdict] for verdict in WRONG):
            plans = "1 plan" if wrong == 1 else f"{wrong} plans"
            raise CommandError(f"{plans} cannot be what it seems: see the lines above.")


def _line(each: Checked) -> str:
    counts = ", ".join(
        f"{len(listed)} {name}{_reasons(each) if name == 'starts' else ''}"
        for name, listed in each.decided.items()
        if listed and isinstance(listed, list)
    )
    program = (
        "" if each.same_program or each.verdict is Verdict.UNREADABLE else ", by another program than now"
    )
    differs = "".join(
        f"\n    {name}: stored {before}, now {now}" for name, (before, now) in each.differs.items()
    )
    costs = "".join(map(_cost, each.decided.get("losses", {}).items()))
    at = f"{each.at:%Y-%m-%d %H:%M:%S} UTC"
    return f"{at}  {each.digest[:12]}  {each.verdict:10}  {each.policy}: {counts}{program}{costs}{differs}"


def _reasons(each: Checked) -> str:
    """Why jobs start; nothing of a plan of an earlier version."""
    found = Counter(why["reason"] for why in each.decided.get("why", {}).values())
    return f" ({', '.join(f'{count} {reason}' for reason, count in sorted(found.items()))})" if found else ""


def _cost(order: tuple[str, Mapping[str, Any]]) -> str:
    """What was at stake for an order."""
    job, loss = order
    slot_type, restart = loss["slot_type"], loss["restart"]
    started = "an unknown restart" if restart is None else f"{slot_time(restart, slot_type)} for the restart"
    return f"\n    {job}: at stake {slot_time(loss['unsaved'], slot_type)} of work, and {started}"


def _sum(found: Counter[Verdict]) -> str:
    total = found.total()
    if not total:
        return "No plan that decided something is stored, or none for this job or of this snapshot."
    parts = ", ".join(f"{count} {WORDS[verdict]}" for verdict, count in found.items())
    return f"{'1 plan' if total == 1 else f'{total} plans'}: {parts}."
