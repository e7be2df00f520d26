"""What a job may require: names of packages with versions. No options, paths or addresses: those would run a build of
the job's, or reach a file of the platform's, outside the job."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement

from jobs.spec.problems import printable

REQUIREMENT_HELP = "a name with versions, such as tqdm>=4.66"
MAX_FILE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Requirements:
    """lines: one requirement each. faults: what is wrong with the others, by line."""

    lines: tuple[str, ...]
    faults: tuple[str, ...] = ()


def requirement_fault(text: str) -> str | None:
    """What is wrong with one requirement, None if it may be used."""
    if "\n" in text or "\r" in text:
        return "has several lines: give each requirement as an entry of its own"
    if text.lstrip().startswith("-"):
        return "is an option of pip; only requirements are supported here"
    try:
        parsed = Requirement(text)
    except InvalidRequirement as error:
        if "/" in text or "@" in text:
            return "is a path or an address; install it in setup: pip install …"
        return f"is not a requirement: {printable(str(error).splitlines()[0])}"
    if parsed.url:
        return "is an address; install it in setup: pip install …"
    if "$" in text:
        return "names a variable; write its value"
    return None


def requirements_of(text: str) -> Requirements:
    """Read a requirements file: a requirement per line, with comments and empty lines."""
    lines, faults = [], []
    for n, raw in enumerate(text.splitlines(), 1):
        line = raw.partition(" #")[0].strip() if not raw.lstrip().startswith("#") else ""
        if not line:
            continue
        if "--hash" in line or line.endswith("\\"):
            fault: str | None = "has a hash or continues in the next line; write a name with versions only"
        else:
            fault = requirement_fault(line)
        if fault:
            faults.append(f"line {n} {fault}")
        else:
            lines.append(line)
    return Requirements(tuple(lines), tuple(faults[:10]))
