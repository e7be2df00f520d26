"""Logs go where docs/security.md says, and the lines that it has operators look for are written."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from django.conf import settings

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gpu_scheduler", "jobs", "learner_agent", "portal", "tenants")
OTHERS_LOGS = {
    "launcher.log": "of a job's own programs on the local cluster",
    "shipper.log": "of a job's own programs on the local cluster",
}
MAKES_A_LOG = {"FileHandler", "SocketHandler", "SysLogHandler", "HTTPHandler", "SMTPHandler", "addHandler"}
"""Of Python's logging, also as the ends of longer names."""
OF_LIBRARIES = {"django.request", "django.security.DisallowedHost"}
"""Names of loggers that the inventory has."""


def inventory() -> str:
    page = (ROOT / "docs" / "security.md").read_text()
    return page[page.index("\n## Logs") : page.index("\n## Times of updates")]


def trees() -> dict[Path, ast.Module]:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in paths}


def texts(tree: ast.AST) -> set[str]:
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_processes_log_to_standard_error_alone() -> None:
    handlers = settings.LOGGING["handlers"]
    assert {each["class"] for each in handlers.values()} == {"logging.StreamHandler"}
    assert not any("stream" in each for each in handlers.values()), "which is standard error"
    named = {
        f"{path}: {node.attr}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr.endswith(tuple(MAKES_A_LOG))
    }
    assert named == set()


def test_every_log_file_is_in_the_inventory() -> None:
    written = {
        text for tree in trees().values() for text in texts(tree) if re.fullmatch(r"[\w.-]*\.log", text)
    }
    assert ".log" in written, "of a process, with its name in front"
    files = {name for name in written - {".log"} if name not in OTHERS_LOGS}
    text = inventory()
    assert "`logs/*.log` in the data folder" in text
    assert "`logs/postgres.log`, `logs/valkey.log`" in text
    unknown = [name for name in files if f"`logs/{name}`" not in text]
    assert unknown == []


def test_each_line_that_operators_are_to_look_for_is_written() -> None:
    rows = [line for line in inventory().splitlines() if "| log: " in line]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("| log: ")[1])}
    assert len(named) > 8
    known = {text for tree in trees().values() for text in texts(tree)}
    assert named - known - OF_LIBRARIES == set()
