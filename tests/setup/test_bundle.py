"""What the front end's bundle weighs, page by page, and how it is served: hashed names, kept for good, compressed."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from typing import Any

import pytest
from django.http import HttpResponse
from django.templatetags.static import static
from django.test import AsyncClient, override_settings

from portal.static_files import BundleStorage
from tests.platform import ROOT

PAGE_BYTES = 77_500
"""Scripts and styles that a page loads before anything happens on it, after gzip."""
LATER = {
    "editor": 145_000,
    "session": 2_000,
    "idiomorph.esm": 5_000,
    "sheet": 2_000,
    "palette": 2_500,
    "peek": 2_500,
    "passkey-answer": 2_000,
    "bar": 4_000,
    "delta": 1_000,
}
"""What a page loads afterward, at most this many bytes after gzip: the YAML editor once the page can be used, the
dialog when a session ends, the comparison of two pages with the first change, the sheet of keys and
the palette when they are opened, the drawer beside a list of jobs when it is opened, what asks a device for a passkey,
and what the tab of logs has around them."""
PEEK_STYLE_BYTES = 4_000
SPRITE_BYTES, FONT_BYTES = 5_000, 55_000
DIST = ROOT / "static" / "dist"
TEMPLATES = ROOT / "templates"
PAGES = sorted(
    str(path.relative_to(TEMPLATES))
    for path in TEMPLATES.rglob("*.html")
    if not path.name.startswith("_") and re.search(r"{% extends|<!doctype", path.read_text())
)


@pytest.fixture(scope="module")
def manifest() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((DIST / "manifest.json").read_text())
    return found


def weight(file: str) -> int:
    return (DIST / f"{file}.gz").stat().st_size


def whole(name: str) -> str:
    """A template with those that it extends and includes."""
    text = (TEMPLATES / name).read_text()
    others = re.findall(r'{% (?:extends|include) "([^"]+)"', text)
    return text + "".join(whole(other) for other in others)


def loaded(page: str, manifest: dict[str, dict[str, Any]]) -> set[str]:
    """The scripts and styles of a template: those it names, what these import, and the elements that it has."""
    text = whole(page)
    entries = [
        manifest[name]
        for name in re.findall(r"""(?:src|href)="{% static 'dist/([\w-]+\.(?:js|css))'""", text)
    ]
    files = {file for entry in entries for file in (entry["file"], *entry["imports"])}
    elements = {
        part
        for entry in entries
        for file, imports in entry["later"].items()
        if f"<{plain(file)}" in text  # x-log, x-chart
        for part in (file, *imports)
    }
    return files | elements


def plain(file: str) -> str:
    return re.sub(r"-[0-9A-Z]{8}\.\w+$", "", file.rsplit("/", 1)[-1])


@pytest.mark.parametrize("page", PAGES)
def test_a_page_keeps_the_budget_of_scripts_and_styles(
    page: str, manifest: dict[str, dict[str, Any]]
) -> None:
    sizes = {file: weight(file) for file in loaded(page, manifest)}

    assert sizes
    assert sum(sizes.values()) <= PAGE_BYTES, sizes


def test_what_is_loaded_later_keeps_budgets_of_its_own(manifest: dict[str, dict[str, Any]]) -> None:
    later = {file for entry in manifest.values() for file in entry["later"]}
    sizes = {plain(file): weight(file) for file in later if not plain(file).startswith("x-")}

    assert sizes.keys() == LATER.keys()
    assert {name: size for name, size in sizes.items() if size > LATER[name]} == {}
    assert weight(manifest["peek.css"]["file"]) <= PEEK_STYLE_BYTES
    assert weight(manifest["icons.svg"]["file"]) <= SPRITE_BYTES
    assert sum(path.stat().st_size for path in DIST.rglob("*.woff2")) <= FONT_BYTES


def test_every_page_is_measured(manifest: dict[str, dict[str, Any]]) -> None:
    measured = {file for page in PAGES for file in loaded(page, manifest)}
    own = {"admin.js", "app.js", "find.js", "job.js", "jobs.js", "new-job.js", "theme.js"}

    assert len(PAGES) > 30
    assert {manifest[name]["file"] for name in own} <= measured
    assert any("chunks/x-log" in file for file in measured)
    assert any("chunks/x-chart" in file for file in measured)


async def get(path: str, **headers: str) -> HttpResponse:
    answer = await AsyncClient().get(path, headers=headers)
    answer.content_read = b"".join([block async for block in answer])  # type: ignore[attr-defined]
    answer.close()
    return answer


@pytest.mark.django_db  # the end of a request looks at the connection that an earlier test may have left
@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("name", ["app.js", "job.css", "icons.svg"])
def test_a_bundled_file_is_compressed_and_kept_for_good(name: str, debug: bool) -> None:
    address = static(f"dist/{name}")
    assert re.search(r"-[0-9A-Z]{8}\.(js|css|svg)$", address)
    with override_settings(DEBUG=debug):
        bare, zipped, best = (
            asyncio.run(get(address, **{"accept-encoding": wanted})) for wanted in ("", "gzip", "gzip, br")
        )

    assert [answer.get("Content-Encoding") for answer in (bare, zipped, best)] == [None, "gzip", "br"]
    assert gzip.decompress(zipped.content_read) == bare.content_read  # type: ignore[attr-defined]
    sizes = [len(answer.content_read) for answer in (bare, zipped, best)]  # type: ignore[attr-defined]
    assert sizes[0] > sizes[1] > sizes[2] > 0
    for answer in (bare, zipped, best):
        assert "immutable" in answer["Cache-Control"]
        assert int(re.search(r"max-age=(\d+)", answer["Cache-Control"])[1]) >= 31_536_000  # type: ignore[index]
        assert answer["Vary"] == "Accept-Encoding"


@pytest.mark.django_db
def test_a_file_without_a_hash_is_not_kept_for_good() -> None:
    assert "immutable" not in asyncio.run(get("/static/favicon.svg"))["Cache-Control"]


def test_a_file_that_the_bundle_does_not_have_is_an_error() -> None:
    with pytest.raises(ValueError, match="make front-end"):
        BundleStorage().url("dist/gone.js")
