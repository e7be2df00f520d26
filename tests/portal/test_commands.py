"""What the platform's commands have in common."""

import importlib
import pkgutil
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import DatabaseError, OperationalError

from portal.management import commands
from portal.management.database_command import DatabaseCommand

WITHOUT_DATABASE = {
    "changepassword",  # refused
    "createsuperuser",  # refused
    "doctor",  # says what is wrong with it, among other things
    "nodes",  # the node daemon works without one
    "up",  # starts it
}


class Failing(DatabaseCommand):
    requires_system_checks: list[str] = []

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def handle(self, *_args: Any, **_options: Any) -> None:
        raise self.error


def test_every_command_that_needs_the_database_says_in_one_line_that_it_is_away() -> None:
    names = {module.name for module in pkgutil.iter_modules(commands.__path__)}
    classes = {
        name: importlib.import_module(f"portal.management.commands.{name}").Command
        for name in names - WITHOUT_DATABASE
    }
    assert len(classes) > 10
    assert [name for name, kind in classes.items() if not issubclass(kind, DatabaseCommand)] == []
    away = OperationalError("connection failed\n\tIs the server running?")
    with pytest.raises(CommandError) as said:
        call_command(Failing(away))
    assert str(said.value) == (
        "The database is not responding; is `manage.py up` running? connection failed Is the server running?"
    )


def test_another_error_of_the_database_is_a_defect() -> None:
    with pytest.raises(DatabaseError, match="no such column"):
        call_command(Failing(DatabaseError("no such column")))
