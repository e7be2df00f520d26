"""`manage.py retention [--preview] [TENANT …]`: remove what the retention rules say, or only show what that would be.

The workers do the same by themselves; the command does all of it at once and may be interrupted at any time.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from jobs import retention
from jobs.humanize import filesize
from jobs.selectors.retention import Effect, effects
from portal.management.database_command import DatabaseCommand
from tenants.models import Tenant
from tenants.retention import Kind, Rule
from tenants.services.retention import default_rules, effective_rules


class Command(DatabaseCommand):
    help = "Remove the data that retention rules no longer keep, or preview it."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenants", nargs="*", metavar="TENANT", help="slugs; default: all tenants")
        parser.add_argument(
            "--preview", action="store_true", help="show what would be removed; remove nothing"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        wanted = options["tenants"]
        found = list(Tenant.objects.filter(**({"slug__in": wanted} if wanted else {})).order_by("slug"))
        if unknown := sorted(set(wanted) - {tenant.slug for tenant in found}):
            raise CommandError(f"no such tenant: {', '.join(unknown)}")
        for tenant in found:
            self.stdout.write(f"{tenant.slug}")
            for each in effects(tenant, effective_rules(tenant)):
                self.stdout.write(f"  {_line(each)}")
        if sessions := default_rules().get(Kind.SESSIONS):
            self.stdout.write(f"sessions: {_limits(sessions)}; those that began earlier end")
        if options["preview"]:
            self.stdout.write("Nothing was removed: this is a preview.")
            return
        removed = retention.enforce_all(found, installation=not wanted)
        self.stdout.write(f"Removed data of {removed} jobs and of the audit log." if removed else "Done.")


def _line(each: Effect) -> str:
    if each.rule.keeps_all:
        return f"{each.kind}: kept forever"
    text = f"{each.kind} ({_limits(each.rule)}): "
    if not each.rows:
        text += "nothing to remove"
    else:
        of_jobs = f" of {each.jobs:,} job{'' if each.jobs == 1 else 's'}" if each.jobs else ""
        text += f"removes {each.amount}{of_jobs}, {filesize(each.bytes)}"
        text += f", from {each.oldest:%Y-%m-%d} to {each.newest:%Y-%m-%d}"
    kept = [f"{one.jobs:,} ({one.message})" for one in each.exempt]
    return text + (f"; jobs exempt: {', '.join(kept)}" if kept else "")


def _limits(rule: Rule) -> str:
    days = f"{rule.days} days" if rule.days is not None else ""
    size = filesize(rule.bytes) if rule.bytes is not None else ""
    return ", ".join(part for part in (days, size) if part)
