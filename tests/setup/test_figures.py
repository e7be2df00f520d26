"""The published figures are the measured ones."""

import subprocess
import sys
from pathlib import Path

from tools.figures import table

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_shows_what_was_measured() -> None:
    command = [sys.executable, "tools/figures.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_figure_of_one_column_alone_is_shown_without_the_others() -> None:
    result = {
        "columns": ["ours", "ray", "ratio"],
        "figures": {"ours a": 1, "ray a": 2, "ray b": 3, "ratio a": 0.5},
        "cores": 2,
        "commit": "1234567890",
        "measured_at": "2026-11-30T00:00:00Z",
    }
    rows = [line for line in table(result).splitlines() if line.startswith(("| a ", "| b "))]
    assert rows == ["| a | 1 | 2 | 0.5 |", "| b | — | 3 | — |"]
