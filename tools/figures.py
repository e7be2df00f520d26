"""Put the figures of bench/results/*.json into docs/benchmarks.md; the text around them is written by hand.

A section holds its table between `<!-- figures: NAME -->` and `<!-- end -->`; a new result gets a section at the end.
A section without a result is an error: the page would show a figure that was not measured.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "bench" / "results"
SECTION = re.compile(r"(<!-- figures: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    text = PAGE.read_text()
    sections = {match["name"] for match in SECTION.finditer(text)}
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    for name in sorted(results.keys() - sections):
        text += f"\n## {name.replace('_', ' ').capitalize()}\n\n<!-- figures: {name} -->\n<!-- end -->\n"
    orphans = sorted(sections - results.keys())
    if orphans:
        print(f"docs/benchmarks.md: nothing was measured for {', '.join(orphans)}", file=sys.stderr)
        return 1
    written = SECTION.sub(lambda match: f"{match[1]}{table(results[match['name']])}{match[3]}", text)
    if "--check" in sys.argv and written != PAGE.read_text():
        print("docs/benchmarks.md is older than bench/results; run `make docs`", file=sys.stderr)
        return 1
    PAGE.write_text(written)
    return 0


def _cell(found: dict, name: str) -> str:
    return shown(found[name]) if name in found else "—"


def table(result: dict) -> str:
    """A Markdown table of one result: figure, value, target; then how it was taken. A result that names columns has a
    column for each, with the figures whose names begin with it; a figure may be of some columns alone."""
    aims, columns = result.get("aims", {}), result.get("columns", [])
    if columns:
        found = dict(flat(result["figures"]))
        parts = [
            name.removeprefix(f"{column} ")
            for column in columns
            for name in found
            if name.startswith(f"{column} ")
        ]
        heads = list(dict.fromkeys(parts))
        header = [f"| figure | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
        rows = [
            f"| {head} | {' | '.join(_cell(found, f'{column} {head}') for column in columns)} |"
            for head in heads
        ]
    else:
        header = ["| figure | measured | target |", "|---|---:|---:|"]
        rows = [
            f"| {name} | {shown(value)} | {shown(aims[name]) if name in aims else ''} |"
            for name, value in flat(result["figures"])
        ]
    taken = [f"{result['cores']} cores", f"commit {result['commit'][:7]}", result["measured_at"][:10]]
    if result.get("command"):
        taken.insert(0, f"`{result['command']}`")
    lines = [*header, *rows, "", " · ".join(taken)]
    baseline = result.get("baseline")
    if isinstance(baseline, str) and baseline:
        lines += ["", f"Baseline: {baseline}"]
    return "\n".join(lines) + "\n"


def flat(figures: dict, prefix: str = "") -> list:
    """Figures by name; a group's name comes before each of its own."""
    rows = []
    for name, value in figures.items():
        if isinstance(value, dict):
            rows += flat(value, f"{prefix}{name} ")
        else:
            rows.append((f"{prefix}{name}", value))
    return rows


def shown(value) -> str:
    return (
        f"{value:,.4g}"
        if isinstance(value, float) and abs(value) < 10_000
        else f"{value:,.0f}"
        if isinstance(value, (int, float))
        else str(value)
    )


if __name__ == "__main__":
    sys.exit(main())
