"""Write one benchmark's figures to bench/results/NAME.json and docs/benchmarks.md, and print them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which the given share (0…1) of the values is, interpolated. Needs at least one value."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def record(
    name: str,
    figures: Mapping[str, float],
    *,
    command: str,
    baseline: str = "",
    targets: Mapping[str, str] = {},
    details: Mapping[str, object] | None = None,
) -> None:
    """Keep figures by name with what is needed to judge and repeat them; units live in the names.

    baseline says in words what a ratio is taken against, measured in the same run. targets: of those figures that there
    are, in the form that tools.figures.is_met reads. details are kept in the file only.
    """
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=RESULTS.parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    document = {
        "name": name,
        "figures": {key: round(value, 6) for key, value in figures.items()},
        "targets": {key: target for key, target in targets.items() if key in figures},
        "baseline": baseline,
        "command": command,
        "commit": commit,
        "cores": os.cpu_count(),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **(details or {}),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    subprocess.run([sys.executable, str(RESULTS.parents[1] / "tools" / "figures.py")], check=False)
    print(f"\n{name} ({command}), {document['cores']} cores, commit {commit}")
    for key, value in figures.items():
        target = f"   target {targets[key]}" if key in targets else ""
        print(f"  {key:36} {value:12.4g}{target}")
