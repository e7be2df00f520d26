"""The locks: hashed, complete, without an address; every dependency says why it is here."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import environment

ROOT = Path(__file__).resolve().parents[2]
GROUPS = sorted(path.stem for path in (ROOT / "requirements").glob("*.in"))


def wanted(group: str) -> list[str]:
    lines = (ROOT / "requirements" / f"{group}.in").read_text().splitlines()
    return [line for line in lines if line and not line.startswith(("#", "-c"))]


def normal(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name
    return re.sub(r"[-_.]+", "-", name[0]).lower()


@pytest.mark.parametrize("group", GROUPS)
def test_every_dependency_is_locked_with_hashes_and_no_address(group: str) -> None:
    lock = (ROOT / "requirements" / f"{group}.txt").read_text()
    pinned = set(re.findall(r"^([a-z0-9.-]+)==", lock, re.MULTILINE))
    assert {normal(line) for line in wanted(group)} <= {normal(name) for name in pinned}
    entries = re.split(r"\n(?=\S)", "\n".join(line for line in lock.splitlines() if not line.startswith("#")))
    assert all("--hash=sha256:" in entry for entry in entries if "==" in entry)
    assert "://" not in lock


@pytest.mark.parametrize("group", ["runtime"])
def test_every_dependency_says_why_it_is_here(group: str) -> None:
    assert [line for line in wanted(group) if "#" not in line] == []


def test_the_front_ends_lock_has_hashes_and_no_address() -> None:
    lock = json.loads((ROOT / "package-lock.json").read_text())
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert packages
    assert all("integrity" in entry for entry in packages.values())
    assert not any("resolved" in entry for entry in packages.values())


def test_an_unchanged_environment_is_left_alone() -> None:
    if not (ROOT / ".venv" / ".locked").exists():
        pytest.skip("this environment was not made by `make env`")
    command = [sys.executable, "tools/environment.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""


def test_every_target_of_the_makefile_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert phony
    explained = set(re.findall(r"^([a-z-]+):[^=\n]*##", makefile, re.MULTILINE))
    assert set(phony[1].split()) == explained


def test_sources_are_compiled_with_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "one.py").write_text("ONE = 1\n")
    monkeypatch.setattr(environment, "ROOT", str(tmp_path))
    environment.compile_sources()
    assert [path.name for path in tmp_path.rglob("*.pyc")] == [f"one.{sys.implementation.cache_tag}.pyc"]


def test_what_is_compiled_is_what_an_installation_runs() -> None:
    copied = re.findall(r"^RUN python -m compileall -q (.*)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert {*environment.SOURCES, "manage.py", "/agent"} == set(copied[0].split())
