"""What a spec's check may know of the machine it is on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jobs.selectors.installation import _data_folders


def test_one_entry_that_cannot_be_followed_does_not_hide_the_other_data(
    tmp_path: Path, settings: Any
) -> None:
    settings.LUTHIER_DATA_ROOT = tmp_path
    for name in ("mnist", "cifar", ".cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "README").touch()
    (tmp_path / "odd").symlink_to("x" * 300)
    assert _data_folders() == ("cifar", "mnist")
