"""Recompute what tenants were entitled to and what they received, and compare it with what is stored."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, time, timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.dateparse import parse_date, parse_datetime

from jobs.selectors.fairness import COLUMNS, Line, Report, fairness, recompute
from jobs.selectors.snapshot import database_now
from portal.management.database_command import DatabaseCommand

MAX_SPAN = timedelta(days=400)
SAME_WITHIN_S = 1.0
"""Slot-seconds by which sums of hours and the sum of all may differ, for they are rounded differently."""


def time_of(text: str) -> datetime:
    """A date or a time; without a time zone it is UTC."""
    try:
        day = parse_date(text)
        found = datetime.combine(day, time(), UTC) if day else parse_datetime(text)
    except ValueError:
        found = None
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 2026-11-25 or 2026-11-25T18:00Z")
    return found if found.tzinfo else found.replace(tzinfo=UTC)


class Command(DatabaseCommand):
    help = (
        "Recompute from attempts, events and the history of quotas what each tenant was entitled to and received, in"
        " whole hours, and say where the stored figures differ. Changes nothing."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--from", dest="start", type=time_of, required=True, help="a date or time, UTC")
        parser.add_argument("--to", dest="end", type=time_of, help="a date or time, UTC; default: now")

    def handle(self, *args: Any, **options: Any) -> None:
        now = database_now()
        start, end = options["start"], options["end"] or now
        if not timedelta(0) < min(end, now) - start <= MAX_SPAN:
            raise CommandError(
                f"--from must be before --to and in the past, by at most {MAX_SPAN.days} days."
            )
        report = recompute(start, end, now)
        self.stdout.write(
            f"{report.start:%Y-%m-%d %H:%M} to {report.end:%Y-%m-%d %H:%M} UTC, recomputed; device-hours"
        )
        columns = ("guaranteed", "share", "entitled", "received", "borrowed", "lent", "shortfall")
        self.stdout.write(f"{'type':12} {'tenant':24}" + "".join(f"{name:>12}" for name in columns))
        for line in report.lines:
            hours = "".join(f"{getattr(line.figures, name) / 3600:>12,.3f}" for name in columns)
            self.stdout.write(f"{line.slot_type:12} {line.tenant:24}{hours}")
        for slot_type, index in report.jain.items():
            self.stdout.write(f"Jain's index, {slot_type}: {'unknown' if index is None else f'{index:.3f}'}")
        self._compare(report, fairness(start, end, now))

    def _compare(self, report: Report, stored: Report) -> None:
        for since, until in stored.unknown:
            self.stdout.write(f"Not stored: {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC")
        if stored.unknown:
            return
        found, known = _by_key(report), _by_key(stored)
        differing = [
            f"{key[0]} {key[1]} {name}: stored {one / 3600:,.3f}, recomputed {other / 3600:,.3f}"
            for key in sorted(found.keys() | known.keys())
            for name in COLUMNS
            if abs((one := _value(known, key, name)) - (other := _value(found, key, name))) > SAME_WITHIN_S
        ]
        for line in differing:
            self.stdout.write(f"Differs: {line}")
        self.stdout.write(
            "Jobs may have been purged since, or events removed." if differing else "The same as stored."
        )


def _by_key(report: Report) -> dict[tuple[str, str], Line]:
    return {(line.slot_type, line.tenant): line for line in report.lines}


def _value(lines: dict[tuple[str, str], Line], key: tuple[str, str], name: str) -> float:
    return float(getattr(lines[key].figures, name)) if key in lines else 0.0
