"""A folder of small real wheels, in place of a package index."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path


def wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    requires: tuple[str, ...] = (),
    files: Mapping[str, str] | None = None,
) -> Path:
    """A pure wheel with a module of that name, whose VERSION says which it is."""
    information = f"{name}-{version}.dist-info"
    content = {
        f"{name}.py": f"VERSION = {version!r}\n",
        **(files or {}),
        f"{information}/METADATA": "\n".join(
            [
                "Metadata-Version: 2.1",
                f"Name: {name}",
                f"Version: {version}",
                *(f"Requires-Dist: {it}" for it in requires),
            ]
        )
        + "\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*content, f"{information}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(place, "w") as packed:
        for path, text in content.items():
            packed.writestr(path, text)
        packed.writestr(f"{information}/RECORD", record)
    return place
