"""The packages that a job requires: from its spec, or from a file of its code, which is read when it is submitted."""

from __future__ import annotations

from jobs import archives, blobs
from jobs.models import Blob
from jobs.spec import Spec
from jobs.spec.problems import Problem, printable
from jobs.spec.requirement import MAX_FILE_BYTES, REQUIREMENT_HELP, requirements_of

PATH = "requirements.file"
NOT_THERE = "is not among the files of the code"


def requirements(spec: Spec, code: Blob | None) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
    """One requirement per entry, and what is wrong with each line of the file that lists them. code: the archive of an
    upload."""
    named = spec.requirements_file
    if named is None:
        return spec.requirements, ()
    if spec.code is not None and not spec.code.upload:
        return requirements_of(dict(spec.code.files)[named]).lines, ()  # its faults are those of the spec
    text, fault = _read(named, code)
    if fault:
        return (), (Problem(PATH, "requirements_not_found", fault, printable(named)),)
    found = requirements_of(text)
    faults = (Problem(PATH, "bad_requirement", fault, named, REQUIREMENT_HELP) for fault in found.faults)
    return found.lines, tuple(faults)


def _read(path: str, code: Blob | None) -> tuple[str, str]:
    """The text of the file, and why it cannot be read."""
    if code is None:
        return "", NOT_THERE
    with blobs.open(code) as archive:
        content = archives.read_file(archive, path, MAX_FILE_BYTES + 1)
    if content is None:
        return "", NOT_THERE
    if len(content) > MAX_FILE_BYTES:
        return "", f"has more than {MAX_FILE_BYTES // 1024} KiB"
    return content.decode("utf-8", "replace"), ""
