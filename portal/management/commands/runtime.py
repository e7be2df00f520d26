"""`manage.py runtime add | list | remove`: the frameworks that jobs can name, changed without a restart.

manage.py runtime add vision --title Vision --python 3.12 torchvision 'timm>=1'
manage.py runtime add vision -r requirements.txt
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from jobs.models import Runtime
from jobs.services import runtimes
from jobs.spec.requirement import requirements_of
from portal.management.database_command import DatabaseCommand
from tenants.errors import ServiceError


class Command(DatabaseCommand):
    help = "Add, list or remove the runtimes that jobs can name; nothing has to be restarted."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, parser_class=argparse.ArgumentParser)
        add = actions.add_parser("add", help="add a runtime")
        add.add_argument("slug", help="its name in job specs")
        add.add_argument("requirements", nargs="*", metavar="REQUIREMENT", help="such as numpy or 'timm>=1'")
        add.add_argument("-r", dest="file", type=Path, help="a file of requirements, one per line")
        add.add_argument("--title", default="", help="its name for people")
        add.add_argument("--description", default="")
        add.add_argument("--python", default="", help="such as 3.12; default: the platform's own version")
        add.add_argument(
            "--image", default="", help="on a cluster that runs container images, instead of requirements"
        )
        actions.add_parser("list", help="list all runtimes")
        actions.add_parser("remove", help="remove a runtime").add_argument("slug")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, f"_{options['action']}")(options)
        except ServiceError as error:
            wrong = [f"{each['path']}: {each['message']}" for each in error.details.get("errors") or []]
            raise CommandError("\n".join(wrong or [error.message])) from error

    def _add(self, options: dict[str, Any]) -> None:
        values = {name: options[name] for name in ("slug", "description", "python", "image")}
        values["title"] = options["title"] or options["slug"]
        values["requirements"] = [*options["requirements"], *self._from_file(options["file"])]
        runtimes.add(None, values)
        self.stdout.write(
            f"Runtime {options['slug']} added. Its packages are installed when the first job needs them."
        )

    def _from_file(self, path: Path | None) -> tuple[str, ...]:
        if path is None:
            return ()
        try:
            found = requirements_of(path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"-r: {path} cannot be read: {error}") from error
        if found.faults:
            raise CommandError("\n".join(f"{path}: {fault}" for fault in found.faults))
        return found.lines

    def _list(self, options: dict[str, Any]) -> None:
        for row in Runtime.objects.order_by("slug"):
            content = row.image or (
                "built in" if row.requirements is None else ", ".join(row.requirements) or "no packages"
            )
            python = f" on Python {row.python}" if row.python else ""
            self.stdout.write(f"{row.slug:<20} {'' if row.enabled else 'disabled, '}{content}{python}")

    def _remove(self, options: dict[str, Any]) -> None:
        runtimes.remove(None, options["slug"])
        self.stdout.write(f"Runtime {options['slug']} removed.")
