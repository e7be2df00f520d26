"""Why a runtime could not be made, in one sentence for people, and whether a later try may succeed. Pure."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence

NO_SPACE = "No space is left on {where} while preparing the runtime {name}."
UNREACHABLE = "The package index could not be reached from {where} while preparing the runtime {name}."
OTHER = "The runtime {name} could not be prepared on {where}. See the log."
MISMATCH = "The runtime {name} cannot be built: {package} is not the package that its requirements pin (hash mismatch)."
UNMAKEABLE = "The runtime {name} cannot be built from its requirements. See the log."
NO_BUILDER = "The runtime {name} cannot be built: uv is not installed on {where}; `make env` installs it."

PACKAGES_NO_SPACE = "No space is left on {where} while preparing the job's packages."
PACKAGES_UNREACHABLE = (
    "The package index could not be reached from {where} while preparing the job's packages."
)
PACKAGES_OTHER = "The job's packages could not be prepared on {where}. See the log."
NO_WHEEL = "Only wheels are installed for requirements; setup: [pip install …] can build a source package in the job."
SAID_CHARS = 2000

_FULL = re.compile(r"no space left|disk quota exceeded|os error (28|122)\b", re.IGNORECASE)
_AWAY = re.compile(
    r"request failed|failed to fetch|error sending request|dns error|connection (refused|reset)"
    r"|(?<!bytecode )(?<!startup )timed out|http status server error",
    re.IGNORECASE,
)
"""That bytecode or Python's startup timed out is this machine's slowness."""
_MISMATCH = re.compile(r"Hash mismatch for `?([^\s`]+)", re.IGNORECASE)
_UNMAKEABLE = re.compile(r"no solution found|`--require-hashes` mode|couldn't parse", re.IGNORECASE)

_REFUSED = re.compile(
    r"No solution found|Because |error: (?!Failed to (fetch|download)|Request)|Hash mismatch|[Cc]ouldn't parse"
)
_BECAUSE = re.compile(r"\bBecause ")
_NO_WHEEL = re.compile(
    r"no (usable )?wheels|no wheels with a matching|has no wheel|building from source is disabled",
    re.IGNORECASE,
)
_HEADLINE = re.compile(r"\s*(?:×|error:)")
"""How uv begins to say what went wrong."""
_FRAME = re.compile(r"[×╰├│─▶┬]+")
"""The lines that the resolver draws around its words."""


class RuntimeFailed(Exception):
    """A runtime was not made. temporary: the environment's doing (space, network), so that a later try may succeed;
    output: what the builder printed, at the end of it if that was much."""

    def __init__(
        self, sentence: str, name: str, *, temporary: bool, output: str = "", package: str = ""
    ) -> None:
        self.temporary = temporary
        self.output = output
        self._sentence = sentence
        self._names = {"name": name, "package": package}
        super().__init__(self.message("this machine"))

    def message(self, where: str) -> str:
        """The sentence for people. where: "node local"."""
        return self._sentence.format(where=where, **self._names)

    @property
    def line(self) -> int | None:
        """The line of the output, from 1, that begins to say why; None if there is no output."""
        lines = self.output.splitlines()
        said = [n for n, line in enumerate(lines, 1) if _HEADLINE.match(line)]
        return said[-1] if said else len(lines) or None


def of_builder(name: str, lines: Sequence[str]) -> RuntimeFailed:
    """What the builder's last lines mean. Unknown errors count as temporary: the lifecycle limits the retries."""
    output = "\n".join(lines)
    if _FULL.search(output):
        return RuntimeFailed(NO_SPACE, name, temporary=True, output=output)
    if found := _MISMATCH.search(output):
        return RuntimeFailed(MISMATCH, name, temporary=False, output=output, package=found[1])
    if _AWAY.search(output):
        return RuntimeFailed(UNREACHABLE, name, temporary=True, output=output)
    if _UNMAKEABLE.search(output):
        return RuntimeFailed(UNMAKEABLE, name, temporary=False, output=output)
    return RuntimeFailed(OTHER, name, temporary=True, output=output)


def of_packages(lines: Sequence[str]) -> RuntimeFailed:
    """Why a job's packages were not installed: in the resolver's own words, unless it is this machine's doing."""
    output = "\n".join(lines)
    if _FULL.search(output):
        return RuntimeFailed(PACKAGES_NO_SPACE, "", temporary=True, output=output)
    if _AWAY.search(output):
        return RuntimeFailed(PACKAGES_UNREACHABLE, "", temporary=True, output=output)
    words = " ".join(_FRAME.sub(" ", " ".join(lines)).split())
    refused = _BECAUSE.search(words) or _REFUSED.search(words)
    if refused is None:
        return RuntimeFailed(PACKAGES_OTHER, "", temporary=True, output=output)
    hint = f" {NO_WHEEL}" if _NO_WHEEL.search(words) else ""
    said = words[refused.start() :].partition(" hint: ")[0][:SAID_CHARS]
    return RuntimeFailed(
        literal(f"The job's packages cannot be installed. {said}{hint}"), "", temporary=False, output=output
    )


def literal(sentence: str) -> str:
    """A sentence without names to be filled in."""
    return sentence.replace("{", "{{").replace("}", "}}")


def of_machine(name: str, error: OSError) -> RuntimeFailed:
    """The machine itself refused."""
    full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    return RuntimeFailed(NO_SPACE if full else OTHER, name, temporary=True, output=str(error))
