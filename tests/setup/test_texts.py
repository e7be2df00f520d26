"""`tools/texts.py` exports every place from which people read: a new place or kind of text must come into its list."""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from gpu_scheduler import checks
from jobs import states
from jobs.spec import codes
from portal.api.schema import document
from portal.pages import badges, job_events
from tenants.errors import ServiceError
from tests.platform import ROOT
from tools import texts

NOT_SHOWN = {"bench", "docs", "examples", "requirements", "static", "tests", "tools", "typings"}
"""Folders whose sources write nothing for users, or whose texts are files to read by themselves; static/src/ts,
static/src/entries and examples/data are in the list."""


@pytest.fixture(scope="module")
def exported() -> set[str]:
    return {text for _, _, text in texts.texts(texts.files(texts.SOURCES))}


def missing(shown: Iterator[str] | list[str], exported: set[str]) -> list[str]:
    """Those that are not in the list, word for word but for what is filled in."""
    return [text for text in (" ".join(each.split()) for each in shown) if text not in exported]


def test_every_folder_with_sources_is_exported_or_known_to_show_nothing() -> None:
    tracked = texts.files(("*.html", "*.py", "*.ts"))
    tops = {path.relative_to(ROOT).parts[0] for path in tracked}
    assert tops - NOT_SHOWN == {source.split("/")[0] for source in texts.SOURCES} - NOT_SHOWN


def test_the_message_of_every_service_error_is_exported(exported: set[str]) -> None:
    for package in ("jobs", "tenants", "portal"):
        for module in pkgutil.walk_packages([str(ROOT / package)], f"{package}."):
            if module.name.endswith("errors"):
                import_module(module.name)
    kinds = [*_below(ServiceError)]
    assert len(kinds) > 25
    assert missing([str(kind.__doc__) for kind in kinds], exported) == []


def _below(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        if each.__module__.split(".")[0] != "tests":
            yield each
            yield from _below(each)


def test_every_text_of_every_admission_check_is_exported(exported: set[str]) -> None:
    shown = [
        text for each in checks.CHECKS for text in (each.title, each.claim, each.label, each.redacted) if text
    ]
    assert missing(shown, exported) == []


def test_the_sentences_of_events_and_the_codes_of_specs_are_exported(exported: set[str]) -> None:
    shown = [*states.EVENT_MESSAGES.values(), *job_events.TITLES.values(), *badges.STOPPED.values()]
    for name, group in vars(codes).items():
        shown += group.values() if name.isupper() and isinstance(group, dict) else ()
    assert len(shown) > 80
    assert missing(shown, exported) == []


def test_the_description_of_every_rest_operation_is_exported(exported: set[str]) -> None:
    shown = [each["summary"] for methods in document()["paths"].values() for each in methods.values()]
    assert len(shown) > 50
    beginnings = {text.split(". ")[0].rstrip(".") for text in exported}
    assert [text for text in shown if text not in beginnings] == []


def test_the_help_of_every_command_is_exported(exported: set[str]) -> None:
    commands = [load_command_class(app, name) for name, app in get_commands().items() if app == "portal"]
    assert len(commands) > 5
    assert missing([command.help for command in commands], exported) == []


def test_every_message_of_a_page_is_exported(exported: set[str]) -> None:
    """Whatever is handed to messages.success and its kin, and is written there."""
    found: list[str] = []
    for path in (ROOT / "portal" / "pages").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and re.match(r"messages\.\w+$", ast.unparse(node.func)):
                found += [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
    assert len(found) > 3
    assert missing(found, exported) == []


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("messages.error(request, 'Closed.')", "Closed."),
        ("messages.success(request, f'{name} closed.')", "{…} closed."),
        ("logger.warning('retrying')", "retrying"),
        ("class Rule(Check):\n    label = 'over quota'", "over quota"),
        ("class Gone(JobError):\n    '''It is gone.'''", "It is gone."),
        ("@operation(Out=Row)\ndef rows(call):\n    '''All rows.'''", "All rows."),
        ("field(help_text='per learner' if each else 'in all')", "in all"),
    ],
)
def test_a_text_is_found_where_only_texts_are_written(source: str, text: str) -> None:
    assert text in [found for _, found in texts.of_python(source, frozenset({"JobError", "Gone"}))]


def test_docstrings_queries_and_patterns_are_left_out() -> None:
    source = "'''About this module.'''\nre.compile('two words here')\nrun('SELECT a FROM b')\n"
    source += "def f():\n    '''Do it all.'''\n"
    assert list(texts.of_python(source)) == []


def test_every_string_of_the_scripts_catalog_is_exported(exported: set[str]) -> None:
    source = (ROOT / "static/src/ts/texts.ts").read_text()
    code = source.replace('""', "")
    lines = [line for line in code.splitlines() if not line.lstrip().startswith(("//", "import"))]
    plain = [text for line in lines for text in re.findall(r'"([^"`$\n]*[A-Za-z]{2}[^"`$\n]*)"', line)]
    assert len(plain) > 100
    assert missing(plain, exported) == []


def test_a_path_narrows_the_list() -> None:
    assert {Path(path).parts[0] for path, _, _ in texts.texts(texts.files(["tenants"]))} == {"tenants"}
