"""Environments on top of each other: the learner's own, that of its job's packages, and the runtime.

Nothing is copied: a ``.pth`` file makes the packages of the layer below visible, its own come first. Scripts are
copied, because they run the Python next to them; they are a few hundred bytes each.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

PTH = "_luthier.pth"
LINKED = ("python", "python3")
PIP = '#!/bin/sh\nexec "$(dirname -- "$(realpath -- "$0")")/python" -m pip "$@"\n'
_RELOCATABLE = b"$(dirname -- "
"""In the first lines of a script that runs the Python next to it, wherever that is."""
_HEAD_BYTES = 256
_SCRIPT_BYTES = 256 * 1024


def site_packages(environment: Path) -> Path | None:
    """Where its packages are; None for a folder that is no virtual environment."""
    if not (environment / "pyvenv.cfg").is_file():
        return None
    return next(iter(sorted(environment.glob("lib/python3.*/site-packages"))), None)


def put_on(top: Path, below: Path) -> None:
    """Let an environment see the packages and scripts of another one of the same Python. Raises OSError."""
    site, lower = site_packages(top), site_packages(below)
    if site is None or lower is None:
        return
    (site / PTH).unlink(
        missing_ok=True
    )  # a package's own file of that name is a link into the builder's cache
    (site / PTH).write_text(f"import site; site.addsitedir({str(lower)!r})\n")
    for script in (below / "bin").iterdir():
        place = top / "bin" / script.name
        if not place.exists() and _is_relocatable(script):
            shutil.copy(script, place)


def make_own(folder: Path, below: Path, pip: Path | None) -> bool:
    """Make the learner's own environment, in which `pip install` works, and say whether there is one.

    below: the environment under it; one without pyvenv.cfg is no virtual environment and is used as it is. pip: the
    folder in which pip is. May be called twice. Raises OSError.
    """
    lower = site_packages(below)
    if lower is None:
        return False
    site = folder / lower.relative_to(below)
    site.mkdir(parents=True, exist_ok=True)
    (folder / "bin").mkdir(exist_ok=True)
    shutil.copyfile(below / "pyvenv.cfg", folder / "pyvenv.cfg")
    interpreter = Path(os.path.realpath(below / "bin" / "python"))
    for name in (*LINKED, site.parent.name):
        (folder / "bin" / name).unlink(missing_ok=True)
        (folder / "bin" / name).symlink_to(interpreter)
    put_on(folder, below)
    if pip is not None:
        with (site / PTH).open("a") as paths:
            paths.write(f"{pip}\n")
        for name in ("pip", "pip3"):
            (folder / "bin" / name).write_text(PIP)
            (folder / "bin" / name).chmod(0o755)
    return True


def provide_pip(home: Path) -> Path | None:
    """A folder below home with nothing but the platform's own pip, made once; None if the platform has none."""
    spec = importlib.util.find_spec("pip")
    if spec is None or spec.origin is None:
        return None
    source = Path(spec.origin).parent
    information = sorted(source.parent.glob("pip-*.dist-info"))
    folder = home / (information[-1].stem.removesuffix(".dist-info") if information else "pip")
    if not folder.is_dir():
        building = home / f".{folder.name}.{os.getpid()}"
        shutil.rmtree(building, ignore_errors=True)
        shutil.copytree(source, building / "pip", ignore=shutil.ignore_patterns("__pycache__"))
        for each in information[-1:]:
            shutil.copytree(each, building / each.name)
        building.rename(folder)
    return folder


def _is_relocatable(script: Path) -> bool:
    if script.is_symlink() or not script.is_file() or script.stat().st_size > _SCRIPT_BYTES:
        return False
    with script.open("rb") as source:
        return _RELOCATABLE in source.read(_HEAD_BYTES)
