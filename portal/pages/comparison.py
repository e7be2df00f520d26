"""What differs between jobs: what became of them, their newest metrics, their specs. Pure.

Jobs are as REST shows them (JobSerializer), in the order in which they are compared; one of them is the baseline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from jobs.spec import in_order, to_yaml
from portal.pages.cells import device, size
from portal.pages.job_cards import View
from portal.templatetags.ui import duration, hours, metric, thousands

NAMED = ("name", "tags")
"""Fields of a spec that say what a job is called, not what it does."""
MISSING = "—"
DIFF_CONTEXT = 2
"""Lines of a spec around each change."""


@dataclass(frozen=True, slots=True)
class Cell:
    """change: from the baseline, such as +0.02 (+4%), where both are numbers."""

    text: str
    differs: bool = False
    change: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """What is compared, and a cell for each job."""

    title: str
    cells: tuple[Cell, ...]

    @property
    def differs(self) -> bool:
        return any(cell.differs for cell in self.cells)


@dataclass(frozen=True, slots=True)
class DiffLine:
    """kind: added, removed, or empty for what is the same in both; place: where a part of the spec begins."""

    kind: str
    text: str


def labels(jobs: Sequence[View]) -> list[str]:
    """A name for each job, with the end of its id where several have the same."""
    known = Counter(job["name"] for job in jobs)
    return [job["name"] if known[job["name"]] == 1 else f"{job['name']} {job['id'][-6:]}" for job in jobs]


def metric_names(jobs: Sequence[View]) -> list[str]:
    """Metrics of these jobs: losses first, then what most of them report, then the alphabet."""
    known = Counter(name for job in jobs for name in job["metrics"])
    return sorted(known, key=lambda name: ("loss" not in name, -known[name], name))


def outcome(jobs: Sequence[View], ran_s: Sequence[float], base: int) -> list[Row]:
    """What became of the jobs, and what they took. ran_s: how long the program of each has run."""
    unit = "GPU-hours" if all(job["gpus"] for job in jobs) else "Device-hours"
    found = {
        "State": [job["phase"] for job in jobs],
        "Reason": [job["reason"]["message"] or MISSING for job in jobs],
        "Step": [_step(job) for job in jobs],
        "Ran for": [duration(seconds) if seconds else MISSING for seconds in ran_s],
        unit: [hours(job["slot_seconds"] / 3600) for job in jobs],
        "Devices": [f"{size(job)} {device(job) or 'any'}" for job in jobs],
        "Restarts": [str(job["restarts_used"]) for job in jobs],
        "Owner": [job["owner"] for job in jobs],
    }
    return [_row(title, texts, base) for title, texts in found.items()]


def newest(jobs: Sequence[View], names: Sequence[str], base: int) -> list[Row]:
    """The newest value of each metric, with its change from the baseline's."""
    rows = []
    for name in names:
        values = [job["metrics"].get(name, {}).get("last") for job in jobs]
        row = _row(name, [metric(value) for value in values], base)
        cells = (
            Cell(cell.text, cell.differs, "" if n == base else change(values[base], value))
            for n, (cell, value) in enumerate(zip(row.cells, values, strict=True))
        )
        rows.append(Row(name, tuple(cells)))
    return rows


def change(before: object, after: object) -> str:
    """From one number to another, also in percent; empty where one is no finite number or nothing changed."""
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return ""
    by = after - before
    if not by or not abs(by) < float("inf"):
        return ""
    share = f" ({_signed(f'{100 * by / abs(before):.3g}')}%)" if before else ""
    return f"{_signed(metric(by))}{share}"


def _signed(number: str) -> str:
    """With its sign, and the typographic minus."""
    return f"−{number[1:]}" if number.startswith("-") else f"+{number}"


def spec_rows(jobs: Sequence[View], base: int) -> list[Row]:
    """Each field that one of the specs has, by its path, in the order of the format."""
    fields = [dict(_fields(in_order(_content(job)))) for job in jobs]
    paths = dict.fromkeys(path for each in fields for path in each)
    return [_row(path, [each.get(path, MISSING) for each in fields], base) for path in paths]


def _content(job: View) -> dict[str, Any]:
    """Its spec, without what only names the job."""
    return {name: field for name, field in job["spec"].items() if name not in NAMED}


def _fields(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, field in value.items():
        path = f"{above}{name}"
        if isinstance(field, Mapping) and field:
            yield from _fields(field, f"{path}.")
        else:
            yield path, _text(field)


def _text(field: Any) -> str:
    if field is None or field == "" or field in ([], {}):
        return MISSING
    if isinstance(field, bool):
        return "yes" if field else "no"
    if isinstance(field, list):
        return ", ".join(_text(one) for one in field)
    if isinstance(field, Mapping):
        return ", ".join(f"{name}: {_text(one)}" for name, one in field.items())
    return str(field)


def spec_diff(before: View, after: View) -> list[DiffLine]:
    """Lines of one spec as YAML that the other changes, with some around them; none if they are the same."""
    lines = unified_diff(
        to_yaml(_content(before)).splitlines(),
        to_yaml(_content(after)).splitlines(),
        lineterm="",
        n=DIFF_CONTEXT,
    )
    kinds = {"+": "added", "-": "removed", "@": "place"}
    return [
        DiffLine(kinds.get(line[0], ""), "…" if line.startswith("@@") else line)
        for line in list(lines)[2:]  # the first two name files
    ]


def _step(job: View) -> str:
    step, total = job["progress"]["step"], job["progress"]["total"]
    return f"{thousands(step)} / {thousands(total)}" if step is not None and total else thousands(step)


def _row(title: str, texts: Sequence[str], base: int) -> Row:
    return Row(title, tuple(Cell(text, text != texts[base]) for text in texts))
