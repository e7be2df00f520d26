"""The frameworks of the source tree become rows once, and stay the administrator's afterwards."""

from pathlib import Path

import pytest

from jobs.models import Runtime
from portal.runtimes import FOLDER, register_runtimes


@pytest.mark.django_db
def test_every_runtime_of_the_tree_gets_a_row() -> None:
    register_runtimes()
    assert set(Runtime.objects.values_list("slug", flat=True)) == {path.stem for path in FOLDER.glob("*.txt")}
    sklearn = Runtime.objects.get(slug="sklearn")
    assert (sklearn.title, sklearn.description) == ("scikit-learn", "scikit-learn (CPU, 0.2 GB)")


@pytest.mark.django_db
def test_a_row_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("")
    Runtime.objects.create(slug="own", title="Ours", enabled=False)
    assert register_runtimes(tmp_path) == 0
    assert Runtime.objects.get(slug="own").title == "Ours"
