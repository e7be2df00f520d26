"""Put the figures of bench/results/*.json into docs/benchmarks.md; the text around them is written by hand.

A section holds its table between `<!-- figures: NAME -->` and `<!-- end -->`; a new result gets a section at the end.
A section without a result is an error: the page would show a figure that was not measured. At the top, between
`<!-- targets -->` and `<!-- end -->`, is which targets were met.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "bench" / "results"
SUMMARY = re.compile(r"(<!-- targets -->\n).*?(<!-- end -->)", re.DOTALL)
MOST = 3  # missed targets of a benchmark that the summary names; the others are in its section
FEW = 8  # figures without a target that are shown beside those with one; more are folded
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
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
    written = SUMMARY.sub(lambda match: f"{match[1]}{summary(written, results)}{match[2]}", written)
    if "--check" in sys.argv and written != PAGE.read_text():
        print("docs/benchmarks.md is older than bench/results; run `make docs`", file=sys.stderr)
        return 1
    PAGE.write_text(written)
    return 0


def is_met(value: float, target: str) -> bool:
    """Whether a figure meets its target: "≤ 250", "≥ 0.8", "= 0" or, of an error to either side, "± 0.03"."""
    sign, number = target.split()
    bound = float(number.replace(",", ""))
    return {"≤": value <= bound, "≥": value >= bound, "=": value == bound, "±": abs(value) <= bound}[sign]


def summary(page: str, results: dict) -> str:
    """A Markdown table of the results with targets, in the page's order: how many were met, and which were missed."""
    rows = ["| benchmark | targets met | missed |", "|---|---:|---|"]
    for match in SECTION.finditer(page):
        result = results[match["name"]]
        targets, figures = result["targets"], dict(flat(result["figures"]))
        if not targets:
            continue
        heading = HEADING.findall(page, 0, match.start())[-1]
        missed = [name for name, target in targets.items() if not is_met(figures[name], target)]
        named = ", ".join(f"`{name}` {shown(figures[name])} ({targets[name]})" for name in missed[:MOST])
        named += f" and {len(missed) - MOST} more" if len(missed) > MOST else ""
        link = f"[{heading}](#{re.sub(r'[^a-z0-9 -]', '', heading.lower()).replace(' ', '-')})"
        rows.append(f"| {link} | {len(targets) - len(missed)} of {len(targets)} | {named} |")
    return "\n".join(rows) + "\n"


def _cell(found: dict, name: str, targets: dict) -> str:
    if name not in found:
        return "—"
    return shown(found[name]) + (f" ({_target(found[name], targets[name])})" if name in targets else "")


def _target(value: float, target: str) -> str:
    return target if is_met(value, target) else f"{target}, missed"


def table(result: dict) -> str:
    """A Markdown table of one result: figure, value, target; then how it was taken. A result that names columns has a
    column for each, with the figures whose names begin with it; a figure may be of some columns alone. There, a target
    is next to its figure. Elsewhere, figures without targets are folded where they are many."""
    targets, columns = result["targets"], result.get("columns", [])
    folded: list[str] = []
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
            f"| {head} | {' | '.join(_cell(found, f'{column} {head}', targets) for column in columns)} |"
            for head in heads
        ]
    else:
        found = dict(flat(result["figures"]))
        plain = [name for name in found if name not in targets]
        if targets and len(plain) > FEW:
            shown_names, folded = [name for name in found if name in targets], _folded(found, plain)
        else:
            shown_names = list(found)
        header = ["| figure | measured | target |", "|---|---:|---:|"]
        rows = [
            f"| {name} | {shown(found[name])} | {_target(found[name], targets[name]) if name in targets else ''} |"
            for name in shown_names
        ]
    taken = [f"{result['cores']} cores", f"commit {result['commit'][:7]}", result["measured_at"][:10]]
    if result.get("command"):
        taken.insert(0, f"`{result['command']}`")
    lines = [*header, *rows, *folded, "", " · ".join(taken)]
    baseline = result.get("baseline")
    if isinstance(baseline, str) and baseline:
        lines += ["", f"Baseline: {baseline}"]
    return "\n".join(lines) + "\n"


def _folded(found: dict, names: list[str]) -> list[str]:
    rows = [f"| {name} | {shown(found[name])} |" for name in names]
    summary_line = f"<details><summary>{len(names)} more figures</summary>"
    return ["", summary_line, "", "| figure | measured |", "|---|---:|", *rows, "", "</details>"]


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
