"""Which files of ours an operation runs through."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from tests.platform import ROOT

OURS = re.compile(rf"{re.escape(str(ROOT))}/(portal|jobs|tenants|gpu_scheduler|learner_agent)/")
DECLARED = re.compile(r"/(models|settings|migrations)(/|\.py$)")
"""Modules that declare rows and settings: what runs in them is not a hop."""
ROW = re.compile(r"^\| (?P<operation>[^|]+?) \| (?P<files>\d+) \|", re.MULTILINE)


class Trace:
    """Notes functions that start in this thread and in threads that were started meanwhile, while `record` runs."""

    def __init__(self) -> None:
        self._on = False
        self._ran: set[str] = set()

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        if self._on and event == "call" and frame.f_code.co_name != "<module>":
            self._ran.add(frame.f_code.co_filename)

    @contextlib.contextmanager
    def record(self) -> Iterator[set[str]]:
        """Fill the set with the files, relative to the root, once the block ends."""
        files: set[str] = set()
        self._ran.clear()
        self._on = True
        try:
            yield files
        finally:
            self._on = False
        files |= {
            str(Path(name).relative_to(ROOT))
            for name in self._ran
            if OURS.match(name) and not DECLARED.search(name)
        }


@contextlib.contextmanager
def traced() -> Iterator[Trace]:
    """A trace of this thread and of all threads that start in the block."""
    trace, before = Trace(), sys.getprofile()
    threading.setprofile(trace.note)
    sys.setprofile(trace.note)
    try:
        yield trace
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def files_on_page() -> dict[str, int]:
    """The number of files of each operation that docs/architecture.md states."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    return {row["operation"]: int(row["files"]) for row in ROW.finditer(page)}


def more_than_stated(passed: dict[str, set[str]]) -> dict[str, list[str]]:
    """The operations that run through more files than the page states, with their files."""
    stated = files_on_page()
    return {
        f"{operation}: {len(files)} files, the page states {stated.get(operation)}": sorted(files)
        for operation, files in passed.items()
        if len(files) > stated.get(operation, 0)
    }
