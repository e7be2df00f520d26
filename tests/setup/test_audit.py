"""The look for known vulnerabilities: what is affected is found, and what was not looked at is never clean."""

from __future__ import annotations

import json
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tools import audit
from tools.audit import Finding, NotLooked, Package, advisories, search
from tools.sbom import ROOT, bill, components_of, go_components, locks

NOW = datetime(2026, 11, 28, tzinfo=UTC)
TODAY = NOW.isoformat()
DJANGO, CHI, UPLOT = (
    Package("PyPI", "django", "5.2.1"),
    Package("Go", "example.org/chi", "v1.4.0"),
    Package("npm", "uplot", "1.6.0"),
)


def advisory(ecosystem: str, name: str, *events: dict[str, str], **more: Any) -> dict[str, Any]:
    kind = "ECOSYSTEM" if ecosystem == "PyPI" else "SEMVER"
    affected = {
        "package": {"ecosystem": ecosystem, "name": name},
        "ranges": [{"type": kind, "events": list(events)}] if events else [],
    }
    return {
        "id": "X-1",
        "modified": TODAY,
        "summary": "bad",
        "affected": [affected | more.pop("part", {})],
        **more,
    }


OTHERS = [advisory(each, "no-such-package", {"introduced": "0"}) for each in ("PyPI", "npm", "Go")]


def found(package: Package, *known: dict[str, Any]) -> list[Finding]:
    return search([package], [*OTHERS, *known], now=NOW)


@pytest.mark.parametrize(
    ("package", "events", "affected"),
    [
        (DJANGO, [{"introduced": "0"}, {"fixed": "5.2.2"}], True),
        (DJANGO, [{"introduced": "0"}, {"fixed": "5.2.1"}], False),
        (DJANGO, [{"introduced": "5.2.1"}], True),
        (DJANGO, [{"introduced": "5.2.1.post1"}], False),
        (DJANGO, [{"introduced": "0"}, {"last_affected": "5.2.1"}], True),
        (DJANGO, [{"introduced": "0"}, {"last_affected": "5.2"}], False),
        (DJANGO, [{"introduced": "0"}, {"fixed": "4.2"}, {"introduced": "5.2a1"}, {"fixed": "5.2.2"}], True),
        (DJANGO, [{"fixed": "5.2.2"}, {"introduced": "5.2"}], True),
        (DJANGO, [{"introduced": "not a version"}], True),
        (CHI, [{"introduced": "0"}, {"fixed": "1.10.0"}], True),
        (CHI, [{"introduced": "1.4.0-rc.1"}, {"fixed": "1.4.0"}], False),
        (CHI, [{"introduced": "1.5.0"}], False),
        (UPLOT, [{"introduced": "0"}, {"fixed": "1.6.1"}], True),
    ],
)
def test_a_version_is_judged_by_the_ranges(
    package: Package, events: list[dict[str, str]], affected: bool
) -> None:
    assert bool(found(package, advisory(package.ecosystem, package.name, *events))) is affected


def test_names_versions_that_are_listed_and_what_cannot_be_judged() -> None:
    assert found(DJANGO, advisory("PyPI", "Django", part={"versions": ["5.2.1"]}))
    assert not found(DJANGO, advisory("PyPI", "Django", part={"versions": ["5.2.2"]}))
    assert found(DJANGO, advisory("PyPI", "django")), "neither versions nor ranges"
    assert found(DJANGO, advisory("PyPI", "django", part={"ranges": [{"type": "GIT", "events": []}]}))
    assert not found(DJANGO, advisory("npm", "django", {"introduced": "0"}))
    assert not found(DJANGO, advisory("PyPI", "django", {"introduced": "0"}, withdrawn=TODAY))


def test_a_database_that_lacks_an_ecosystem_or_is_old_is_no_look() -> None:
    with pytest.raises(NotLooked, match="no advisories of npm"):
        search([UPLOT, DJANGO], [OTHERS[0], OTHERS[2]], now=NOW)
    old = [each | {"modified": (NOW - timedelta(days=31)).isoformat()} for each in OTHERS]
    with pytest.raises(NotLooked, match="newest advisory of PyPI in the database is of 2026-10-28"):
        search([DJANGO], old, now=NOW)
    with pytest.raises(NotLooked, match="newest advisory"):
        search([DJANGO], [{**OTHERS[0], "modified": None}], now=NOW)


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.json", b"{"), ("a.json", b"[]"), ("a.json", b"[1]"), ("a.json", b"\xff"), ("a.zip", b"no zip")],
)
def test_a_damaged_or_empty_database_is_no_look(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(NotLooked):
            list(advisories([path]))
    with pytest.raises(NotLooked, match="cannot be read"):
        list(advisories([tmp_path / "missing.json"]))


def write(folder: Path, *known: dict[str, Any]) -> str:
    """A database as it is downloaded, a zip file; of today."""
    path = folder / "all.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for n, each in enumerate(known):
            packed.writestr(f"X-{n}.json", json.dumps(each | {"modified": datetime.now(UTC).isoformat()}))
    return str(path)


def test_the_whole_look_ends_with_what_it_saw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([write(tmp_path, *OTHERS)]) == audit.CLEAN
    assert "0 known vulnerabilities" in capsys.readouterr().out
    known = [
        advisory("PyPI", "django", {"introduced": "0"}, {"fixed": "99.0"}),
        advisory("Go", "stdlib", {"introduced": "0"}, {"fixed": "99.0.0"}),
    ]
    assert audit.main([write(tmp_path, *OTHERS, *known)]) == audit.FOUND
    printed = capsys.readouterr().out
    assert "X-1: bad; fixed in 99.0" in printed
    assert "stdlib 1." in printed
    assert audit.main([write(tmp_path, *OTHERS[:2], *known[:1])]) == audit.NOT_LOOKED
    said = capsys.readouterr()
    assert "no advisories of Go" in said.err
    assert "known vulnerabilities" not in said.out


def test_without_a_database_it_never_says_clean(capsys: pytest.CaptureFixture[str]) -> None:
    def away(wanted: object) -> list[Finding]:
        raise NotLooked("the npm registry gives no advisories: 405")

    for ask in (away, lambda wanted: []):
        assert audit.main([], ask_npm=ask) == audit.NOT_LOOKED
        said = capsys.readouterr()
        assert "NOT CHECKED" in said.err
        assert "known vulnerabilities" not in said.out


def test_an_error_of_npm_is_no_report() -> None:
    warned = "npm warn audit 405 Method Not Allowed - POST …\nnpm error audit endpoint returned an error"
    for out in ("", "null", "[]", '{"message": "405"}', '{"vulnerabilities": {}}'):
        with pytest.raises(NotLooked, match="405 Method Not Allowed"):
            audit.read_npm(out, warned, [UPLOT])
    via = [{"title": "bad", "url": "GHSA-1"}, "another"]
    report = {"vulnerabilities": {"uplot": {"via": via}}, "metadata": {"vulnerabilities": {"total": 1}}}
    assert audit.read_npm(json.dumps(report), "", [UPLOT]) == [Finding(UPLOT, "GHSA-1", "bad", "")]
    report["vulnerabilities"] = {}
    assert report["metadata"]
    with pytest.raises(NotLooked, match="could not be understood"):
        audit.read_npm(json.dumps(report), "", [UPLOT])


def test_every_lock_of_the_repository_is_in_the_bill() -> None:
    named = {path.relative_to(ROOT).as_posix() for path, _ in locks()}
    places = ("requirements/*.txt", "examples/runtimes/*.txt", "**/go.mod", "package-lock.json")
    outside = (".venv", "node_modules")
    there = {
        path.relative_to(ROOT).as_posix()
        for place in places
        for path in ROOT.glob(place)
        if path.relative_to(ROOT).parts[0] not in outside
    }
    assert named == there
    made = bill()["components"]
    said = {one["value"] for each in made for one in each["properties"] if one["name"] == "luthier:lock"}
    empty = {path.relative_to(ROOT).as_posix() for path, _ in locks() if not components_of(path)}
    assert said == named - empty


def test_a_module_that_is_replaced_counts_as_what_replaces_it_and_one_without_a_digest_is_refused() -> None:
    module = """module luthier/x

go 1.26.0

require (
\tk8s.io/api v0.0.0 // indirect
\ta.example/b v1.0.0
)
require c.example/d v2.0.0+incompatible

replace k8s.io/api => k8s.io/api v0.36.3
"""
    sums = (
        "k8s.io/api v0.36.3 h1:x=\na.example/b v1.0.0 h1:y=\nc.example/d v2.0.0+incompatible/go.mod h1:z=\n"
    )
    found = [(each["name"], each["version"]) for each in go_components(module, sums)]
    assert found == [
        ("a.example/b", "v1.0.0"),
        ("c.example/d", "v2.0.0+incompatible"),
        ("k8s.io/api", "v0.36.3"),
    ]
    with pytest.raises(ValueError, match=r"no digest of c\.example/d"):
        go_components(module, sums.partition("c.example")[0])
