"""What a stylesheet or the list of icons names is used: by a template, Python or a script."""

from __future__ import annotations

import re

import pytest

from tests.platform import ROOT

STYLES = ROOT / "static" / "src" / "css"
LIBRARIES = ("cm-", "u-")  # classes of CodeMirror and uPlot
NUMBERED = re.compile(r"(?<![\w-])([a-z]+-)(?=\$?\{)")  # span-{{ width }}, `series-${n}`


@pytest.fixture(scope="module")
def used() -> str:
    places = (("templates", "*.html"), ("portal", "*.py"), ("jobs", "*.py"), ("static/src", "*.ts"))
    return "\n".join(path.read_text() for folder, kind in places for path in (ROOT / folder).rglob(kind))


@pytest.fixture(scope="module")
def styles() -> str:
    return re.sub(
        r"/\*.*?\*/", "", "\n".join(path.read_text() for path in STYLES.rglob("*.css")), flags=re.DOTALL
    )


def test_every_class_of_a_stylesheet_is_used(used: str, styles: str) -> None:
    words = set(re.findall(r"[\w-]+", used))
    numbered = set(NUMBERED.findall(used))
    classes = set(re.findall(r"\.([A-Za-z_][\w-]*)(?=[^{};]*\{)", styles))
    assert len(classes) > 400
    unused = {name for name in classes - words if re.sub(r"[0-9]+$", "", name) not in numbered}
    assert sorted(name for name in unused if not name.startswith(LIBRARIES)) == []


def test_every_attribute_of_a_stylesheet_is_used(used: str, styles: str) -> None:
    attributes = set(re.findall(r"\[data-([\w-]+)", styles))
    in_scripts = {name: re.sub(r"-(\w)", lambda found: found[1].upper(), name) for name in attributes}
    assert attributes
    assert [
        name
        for name in attributes
        if f"data-{name}" not in used and f"dataset.{in_scripts[name]}" not in used
    ] == []


def test_every_property_of_a_stylesheet_is_defined_and_used(used: str, styles: str) -> None:
    defined = set(re.findall(r"(--[\w-]+)\s*:", styles))
    read = set(re.findall(r"var\(\s*(--[\w-]+)", styles)) | set(re.findall(r"--[\w-]+", used))
    assert sorted(defined - read) == []
    assert sorted(set(re.findall(r"var\(\s*(--[\w-]+)", styles)) - defined) == []


def test_every_icon_of_the_list_is_used(used: str) -> None:
    icons = (ROOT / "static" / "src" / "icons.txt").read_text().split()
    assert icons == sorted(icons)
    assert [name for name in icons if f'"{name}"' not in used and f"'{name}'" not in used] == []
