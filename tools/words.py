"""Find words that Luthier does not use: homemade terms, and English that a native engineer would not write.

    python tools/words.py [PATH ...]      each finding with file, line and replacement; exit code 1 if any

Searches tracked text files, names included: `JobSeen` and `job_seen` read as "job seen". Without a path: all of them.
docs/glossary.md has the words that are used instead.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

BANNED = {
    # Homemade terms, each with the word of the field
    r"wish(es|ed|ing)?": "intent, request, requested",
    r"seats?": "worker registration, device allocation, access level",
    r"dut(y|ies)": "periodic task",
    r"(job|learner|cluster) seen": "observation",
    r"evidence": "failure classification",
    r"again s|again if broken off": "requeue_after_s, retry_on_serialization_failure",
    r"broken off": "interrupted",
    r"doors?": "permission",
    r"announc(e|es|ed|ing|ement|ements)": "publish",
    r"bells?|ears?|r(ing|ings|inging|ang)": "notify, subscribe",
    r"hears?|heard|unheard": "receive, heartbeat",
    r"tells?|told|telling|untold": "report, say, response",
    r"houses?": "daemon context",
    r"keepers?": "checkpoint uploader",
    r"patience": "starvation timeout",
    r"moments": "timestamps",
    r"pace": "throughput, rate",
    r"poison(ed|ous|s)?": "failing, quarantined",
    r"signs? of life": "heartbeat",
    r"(cluster|agent|learner|launcher|shipper|daemon|program)'s (own )?(last )?words?": "report",
    r"overtaken": "superseded",
    r"in step with": "synced with",
    # English that reads as translated or literary
    r"somebody|nobody": "name the actor, or use the passive",
    r"whoever|whomever": "whichever process, anyone who",
    r"he|his|him|himself|she|her|hers": "they, or the role",
    r"mend(s|ed|ing)?": "fix",
    r"anew": "again",
    r"forth": "out",
    r"stands?|stood|standing": "is, is listed, exists, remains",
    r"lies": "is",
    r"lately": "recently",
    r"furnish(ed|es)?": "provide",
    r"foret(ell|ells|old)": "forecast",
    r"g(o|oes|one) on from": "resume from",
    r"gone on with": "continued",
    # British spelling
    r"(colour|favour|behaviour|honour|neighbour|labour)\w*|cent(re|res|red)|catalogues?": "American spelling",
    r"(normal|recogn|organ|initial|serial)is(e[ds]?|ing|ations?)": "American spelling",
}
"""Regular expression over lower-case words -> what to write instead."""

ALLOWED = re.compile(
    r"stands? (for|by|in for)\b|\btell\((self)?\)|back and forth|focus ring|ring buffer"
    r"|\"evidence\""  # a key in gang files of earlier versions
    r"|\b0011 starts foretold by plan\b"  # the file name of an ADR
    r"|[`'\"{(]nobody[`'\"})]|user nobody|nobody = 65534|tests\.nobody"  # the Unix user
)
"""Phrases in which a banned word is right: removed before the search."""

SUFFIXES = {".py", ".pyi", ".ts", ".css", ".html", ".md", ".toml", ".yml", ".yaml", ".txt", ".sh", ".in", ""}
SKIPPED = (
    "LICENSE",
    "tools/words.py",
    "tests/setup/test_words.py",
    "tests/jobs/spec/corpus/",
    "examples/runtimes/",
    "requirements/",
    "tests/jobs/test_migrations.py",  # stores rows with the names of earlier versions
    # Decisions in the words of their day: a record is not edited. Later ones are checked.
    "docs/adr/000",
    "docs/adr/001",
    "docs/adr/0020",
    "docs/adr/0021",
    "docs/adr/README.md",  # lists their titles
)
UNTRACKED = {
    ".git",
    ".venv",
    ".luthier",
    "node_modules",
    "dist",
    "out",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
}
_SEARCH = re.compile(r"\b(?:" + "|".join(f"(?P<w{n}>{word})" for n, word in enumerate(BANNED)) + r")\b")
_REPLACEMENTS = list(BANNED.values())
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def main(arguments: list[str]) -> int:
    found: Counter[str] = Counter()
    for path in tracked(arguments):
        for number, line in enumerate((ROOT / path).read_text(errors="replace").splitlines(), 1):
            for word, instead in findings(line):
                found[path] += 1
                print(f"{path}:{number}: {word!r} -> {instead}: {line.strip()[:100]}")
    if not found:
        return 0
    print(f"{found.total()} words to replace in {len(found)} files", file=sys.stderr)
    return 1


def findings(line: str) -> list[tuple[str, str]]:
    """Each banned word of one line of text or code, with what to write instead."""
    plain = _CAMEL.sub(" ", line).replace("_", " ").replace("-", " ").lower()
    found = []
    for match in _SEARCH.finditer(ALLOWED.sub(" ", plain)):
        assert match.lastgroup is not None
        found.append((match.group(), _REPLACEMENTS[int(match.lastgroup[1:])]))
    return found


def tracked(paths: list[str]) -> list[str]:
    """The text files under these paths that are checked, relative to the repository."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--", *paths]
    try:
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):  # a source archive, or no git
        listed = [
            str(path.relative_to(ROOT))
            for top in paths or ["."]
            for path in (ROOT / top).rglob("*")
            if not UNTRACKED.intersection(path.parts)
        ]
    return [path for path in listed if path and checked(path)]


def checked(path: str) -> bool:
    return (
        Path(path).suffix in SUFFIXES
        and "/migrations/" not in path
        and not path.startswith(SKIPPED)
        and (ROOT / path).is_file()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
