"""Which versions of packages a job runs with, for people."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

SHOWN = 20


def versions_chosen(packages: Mapping[str, Sequence[str]]) -> str:
    """The versions of Job.packages, first those that the job requires: what these need may be dozens. Empty: none."""
    lock = packages.get("lock", ())
    asked = {_name(line) for line in packages.get("requirements", ())}
    named = sorted(lock, key=lambda line: _name(line) not in asked)
    return ", ".join(named[:SHOWN]) + (f" and {len(lock) - SHOWN} more" if lock[SHOWN:] else "")


def packages_line(packages: Mapping[str, Sequence[str]]) -> str:
    """What is known of them, as a line of the job's page; "" for a job that requires none."""
    asked, lock = len(packages.get("requirements", ())), packages.get("lock")
    if not asked:
        return ""
    if not lock:
        state = "none of them applies here" if lock is not None else "the versions are not chosen yet"
        return f"{_count(asked)} required; {state}"
    begin = "Version of 1 package was" if len(lock) == 1 else f"Versions of {len(lock)} packages were"
    return f"{begin} chosen: {versions_chosen(packages)}"


def _count(packages: int) -> str:
    return f"{packages} package{'' if packages == 1 else 's'}"


def _name(line: str) -> str:
    """The name in a requirement, in its one spelling."""
    return re.sub("[-_.]+", "-", re.split(r"[^\w.-]", line.strip(), maxsplit=1)[0]).lower()
