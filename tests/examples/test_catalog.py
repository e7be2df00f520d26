"""Every example is a valid job that carries its whole program."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from pathlib import Path

import pytest

from examples import catalog
from examples.data import fetch as data_sets
from jobs.spec import parse
from tests.examples.programs import EXAMPLES


@pytest.mark.parametrize("name", catalog.names())
def test_example_is_a_valid_job_with_its_code(name: str) -> None:
    spec = parse(catalog.load(name))
    assert spec.code
    assert {path for path, _ in spec.code.files} == {
        path.name for path in (EXAMPLES / name).glob("*.py") if path.is_file()
    }
    assert not spec.warnings


@pytest.mark.parametrize("name", catalog.names())
def test_example_names_a_runtime_that_is_locked_with_hashes(name: str) -> None:
    framework = catalog.load(name)["framework"]
    lock = (EXAMPLES / "runtimes" / f"{framework}.txt").read_text()
    pinned = [line for line in lock.splitlines() if line and not line.startswith((" ", "#"))]
    assert all("==" in line and line.endswith("\\") for line in pinned)
    assert "--hash=sha256:" in lock or not pinned
    assert "://" not in lock


def test_gallery_describes_every_example_and_begins_with_the_first_job() -> None:
    templates = catalog.templates()
    assert templates[0].name == catalog.FIRST_JOB
    assert all(template.title and len(template.summary) > 40 for template in templates)


def test_the_error_for_an_unknown_example_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match="digits-sklearn"):
        catalog.load("nothing")


def test_loaded_specs_are_fresh() -> None:
    catalog.load("plain")["name"] = "changed"
    assert catalog.load("plain")["name"] == "sunspots"


def test_what_a_run_leaves_beside_a_program_is_not_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(EXAMPLES / "plain", tmp_path / "plain")
    (tmp_path / "plain" / "checkpoints").mkdir()
    (tmp_path / "plain" / "checkpoints" / "state.pickle").write_bytes(b"\x80\x05")
    (tmp_path / "plain" / "weights.json").write_text("{}")
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    assert set(catalog.load("plain")["code"]["files"]) == {"train.py"}


def test_two_processes_may_fetch_one_data_set_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make data` while the first start of a demo fetches it in the background."""
    sha = hashlib.sha256(b"images").hexdigest()
    monkeypatch.setitem(data_sets.DATA_SETS, "small", data_sets.DataSet("small@1", {"data/a": sha}, "Small."))

    def pack_while_the_other_finishes(package: str, scratch: Path) -> Path:
        other = tmp_path / "small"
        other.mkdir()
        (other / "a").write_bytes(b"images")
        (scratch / "a").write_bytes(b"images")
        with tarfile.open(scratch / "small.tgz", "w:gz") as archive:
            archive.add(scratch / "a", "package/data/a")
        return scratch / "small.tgz"

    monkeypatch.setattr(data_sets, "_pack", pack_while_the_other_finishes)
    assert data_sets.fetch("small", tmp_path) == tmp_path / "small"
    assert [path.name for path in tmp_path.iterdir()] == ["small"], "nothing is left of the attempt"
