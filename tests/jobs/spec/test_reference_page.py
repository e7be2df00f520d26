"""docs/job-spec.md says what is checked: its tables are made from the definition, its codes are the ones in use."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from jobs.spec import codes, parse
from tests.examples.programs import REPOSITORY
from tests.jobs.spec.test_bad_specs import RANGES
from tests.jobs.spec.test_hostile_documents import CORPUS

SOURCES = "".join(
    path.read_text()
    for path in sorted((REPOSITORY / "jobs" / "spec").glob("*.py"))
    if path.name != "codes.py"
)
ALL_CODES = codes.DOCUMENT | codes.FIELDS | codes.INSTALLATION | codes.WARNINGS


def page() -> str:
    return Path(REPOSITORY, "docs", "job-spec.md").read_text()


def test_tables_are_up_to_date() -> None:
    command = [sys.executable, str(REPOSITORY / "tools" / "spec_reference.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_every_documented_code_is_in_use() -> None:
    assert [code for code in ALL_CODES if f'"{code}"' not in SOURCES] == []


def test_every_code_in_use_is_documented() -> None:
    used = re.findall(
        r'(?:problem|Problem|_note|_stop|_refused)\(\s*(?:[^"()]|\([^()]*\))*?"([a-z][a-z0-9_]+)"', SOURCES
    )
    used += [code for _, _, _, code in RANGES] + [path.name.split(".")[0] for path in CORPUS]
    assert sorted({code for code in used if "_" in code or code == "required"} - ALL_CODES.keys()) == []


def test_example_of_the_page_is_a_valid_spec() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", page(), re.DOTALL)
    assert parse(example, "application/yaml").warnings == ()
