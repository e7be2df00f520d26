"""The published figures are the measured ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.figures import is_met, summary, table

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_shows_what_was_measured() -> None:
    command = [sys.executable, "tools/figures.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_figure_of_one_column_alone_is_shown_without_the_others() -> None:
    result = {
        "columns": ["ours", "ray", "ratio"],
        "figures": {"ours a": 1, "ray a": 2, "ray b": 3, "ratio a": 0.5},
        "targets": {"ratio a": "≥ 1"},
        "cores": 2,
        "commit": "1234567890",
        "measured_at": "2026-11-30T00:00:00Z",
    }
    rows = [line for line in table(result).splitlines() if line.startswith(("| a ", "| b "))]
    assert rows == ["| a | 1 | 2 | 0.5 (≥ 1, missed) |", "| b | — | 3 | — |"]


def test_many_figures_without_a_target_are_folded() -> None:
    figures = {"p99_ms": 7, **{f"n_{n}": n for n in range(9)}}
    result = {
        "figures": figures,
        "targets": {"p99_ms": "≤ 9"},
        "cores": 2,
        "commit": "1",
        "measured_at": "2026",
    }
    lines = table(result).splitlines()
    assert lines[:3] == ["| figure | measured | target |", "|---|---:|---:|", "| p99_ms | 7 | ≤ 9 |"]
    assert lines[4] == "<details><summary>9 more figures</summary>"
    assert lines[lines.index("</details>") - 2] == "| n_8 | 8 |"


def test_every_published_figure_has_a_command_that_can_be_run_again() -> None:
    for path in sorted((ROOT / "bench" / "results").glob("*.json")):
        _, flag, module, *_ = json.loads(path.read_text())["command"].split()
        assert flag == "-m", path
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), path
    done = subprocess.run(
        [sys.executable, "tools/measure.py", "never"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "No benchmark named never was measured before. Known: agent_cost," in done.stderr


@pytest.mark.parametrize(
    ("value", "target", "met"),
    [
        (250, "≤ 250", True),
        (250.1, "≤ 250", False),
        (0.79, "≥ 0.8", False),
        (100_000, "≥ 100,000", True),
        (0, "= 0", True),
        (1, "= 0", False),
        (-0.03, "± 0.03", True),
        (-0.04, "± 0.03", False),
    ],
)
def test_a_target_says_to_which_side_a_figure_may_be(value: float, target: str, met: bool) -> None:
    assert is_met(value, target) is met


def test_the_summary_names_what_was_missed_and_leads_to_it() -> None:
    page = "## Against 2 others\n\n<!-- figures: a -->\n<!-- end -->\n\n## None\n\n<!-- figures: b -->\n<!-- end -->\n"
    figures = {"fast": 3, **{f"slow_{n}": n for n in range(5)}}
    targets = {"fast": "≤ 5", **{f"slow_{n}": "≥ 9" for n in range(5)}}
    rows = summary(page, {"a": {"figures": figures, "targets": targets}, "b": {"figures": {}, "targets": {}}})
    assert rows.splitlines()[2:] == [
        "| [Against 2 others](#against-2-others) | 1 of 6"
        " | `slow_0` 0 (≥ 9), `slow_1` 1 (≥ 9), `slow_2` 2 (≥ 9) and 2 more |"
    ]
