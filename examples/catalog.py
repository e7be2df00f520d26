"""The examples as templates: job specs with their code, ready to be submitted.

An example is a folder with ``job.yaml`` (a spec without ``code``), its Python files and a README whose title
and first paragraph describe it. ``load`` fills ``code.files`` from the folder.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent
FIRST_JOB = "digits-sklearn"
"""The example that a new installation runs first."""


@dataclass(frozen=True, slots=True)
class Template:
    """One example. data lists what ``python -m examples.data.fetch`` must have fetched before."""

    name: str
    title: str
    summary: str
    framework: str
    learners: int
    data: tuple[str, ...]
    spec: dict[str, Any]


@cache
def names() -> tuple[str, ...]:
    """Return every example's name, the first job first, then in order."""
    found = sorted(folder.parent.name for folder in ROOT.glob("*/job.yaml"))
    return (FIRST_JOB, *(name for name in found if name != FIRST_JOB))


def load(name: str) -> dict[str, Any]:
    """Return an example's spec with its code, as a fresh object ready to be sent. Raises KeyError."""
    if name not in names():
        raise KeyError(f"there is no example {name}; there are {', '.join(names())}")
    spec: dict[str, Any] = yaml.safe_load((ROOT / name / "job.yaml").read_text("utf-8"))
    whole: dict[str, Any] = {}
    for key, value in spec.items():
        if key == "command":
            whole["code"] = {"files": _files(ROOT / name)}
        whole[key] = value
    return whole


def templates() -> tuple[Template, ...]:
    """Return every example with what the gallery shows."""
    return tuple(_template(name) for name in names())


def _template(name: str) -> Template:
    spec = load(name)
    title, summary = _description(ROOT / name / "README.md")
    return Template(
        name=name,
        title=title,
        summary=summary,
        framework=spec["framework"],
        learners=spec.get("resources", {}).get("learners", 1),
        data=tuple(mount["name"] for mount in spec.get("data", ())),
        spec=spec,
    )


def _files(folder: Path) -> dict[str, str]:
    """Return the program's own files, without what a run has left (checkpoints, results)."""
    paths = sorted(folder.glob("*.py"))
    return {path.name: path.read_text("utf-8") for path in paths}


def _description(readme: Path) -> tuple[str, str]:
    """Return the title and the first paragraph as one line."""
    title, paragraph, *_ = readme.read_text("utf-8").split("\n\n")
    return title.removeprefix("# ").strip(), " ".join(paragraph.split())


def main() -> int:
    """Print an example's whole spec as YAML: ``python -m examples.catalog NAME``."""
    from jobs.spec import parse, to_yaml

    if len(sys.argv) != 2 or sys.argv[1] not in names():
        print(f"usage: python -m examples.catalog {{{','.join(names())}}}", file=sys.stderr)
        return 2
    print(to_yaml(parse(load(sys.argv[1]))), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
