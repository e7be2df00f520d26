"""The packages that a job requires: from its spec, or from a file of its code, which is read when it is submitted."""

from __future__ import annotations

from jobs import archives, blobs
from jobs.errors import SpecInvalid
from jobs.models import Blob
from jobs.spec import Spec
from jobs.spec.problems import Problem, printable
from jobs.spec.requirement import MAX_FILE_BYTES, REQUIREMENT_HELP, requirements_of

PATH = "requirements.file"


def requirements(spec: Spec, code: Blob | None) -> tuple[str, ...]:
    """One requirement per entry; code: the archive of an upload. Raises SpecInvalid with every line that is wrong."""
    if spec.requirements_file is None:
        return spec.requirements
    if spec.code is not None and not spec.code.upload:
        return requirements_of(dict(spec.code.files)[spec.requirements_file]).lines
    found = requirements_of(_read(spec.requirements_file, code))
    if found.faults:
        problems = [
            Problem(PATH, "bad_requirement", fault, spec.requirements_file, REQUIREMENT_HELP)
            for fault in found.faults
        ]
        raise SpecInvalid(errors=[problem.as_dict() for problem in problems])
    return found.lines


def _read(path: str, code: Blob | None) -> str:
    message = "is not among the files of the code"
    if code is not None:
        with blobs.open(code) as archive:
            content = archives.read_file(archive, path, MAX_FILE_BYTES + 1)
        if content is not None and len(content) <= MAX_FILE_BYTES:
            return content.decode("utf-8", "replace")
        if content is not None:
            message = f"has more than {MAX_FILE_BYTES // 1024} KiB"
    raise SpecInvalid(errors=[Problem(PATH, "requirements_not_found", message, printable(path)).as_dict()])
