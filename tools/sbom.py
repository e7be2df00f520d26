"""A bill of materials from the locks, as CycloneDX 1.6: what an installation runs and what its front end is made of."""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*\])?==(?P<version>[^ ;\\]+)(?P<rest>(?:.|\n)*?)(?=^\S|\Z)", re.M
)
DIGEST = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def python_components(lock: str) -> list[dict[str, Any]]:
    """The packages of a hashed requirements file, each with the digests of all its distributions."""
    found = []
    for match in PYTHON.finditer(lock):
        name, version = match["name"].lower().replace("_", "-"), match["version"]
        hashes = [{"alg": "SHA-256", "content": digest} for digest in DIGEST.findall(match["rest"])]
        found.append(_component(f"pkg:pypi/{name}@{version}", name, version, hashes))
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


def bill() -> dict[str, Any]:
    python = python_components((ROOT / "requirements" / "runtime.txt").read_text())
    front_end = front_end_components(json.loads((ROOT / "package-lock.json").read_text()))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "luthier", "bom-ref": "luthier"}},
        "components": python + front_end,
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
