"""Runtimes: virtual environments made on first use from pinned, hash-checked requirement files.

``<data>/runtimes/<name>-<hash>``; the hash covers the requirements and the Python, so a changed file gives a new
environment and old attempts keep theirs.

    python -m gpu_scheduler.clusters.local.runtimes --data DIR NAME …    prepares some beforehand
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.clusters.base import DNS_LABEL
from gpu_scheduler.clusters.local.builder import Build, Preparing, is_complete


class Runtimes:
    """The runtimes of one data folder. requirements: the folder of ``<name>.txt`` files."""

    def __init__(self, data: Path, requirements: Path, on_change: Callable[[], None] = lambda: None) -> None:
        self._home = data / "runtimes"
        self._requirements = requirements
        self._on_change = on_change
        self._builds: dict[str, RuntimeBuild] = {}
        self._ready: dict[str, Path] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._requirements.glob("*.txt"))

    def has(self, name: str) -> bool:
        return DNS_LABEL.fullmatch(name) is not None and (self._requirements / f"{name}.txt").is_file()

    def folder(self, name: str) -> Path:
        """Where the runtime is or will be."""
        digest = hashlib.sha256((self._requirements / f"{name}.txt").read_bytes())
        digest.update(f"{sys.version_info[:3]} {os.path.realpath(sys.executable)}".encode())
        return self._home / f"{name}-{digest.hexdigest()[:12]}"

    def get(self, name: str) -> Path | Preparing:
        """The runtime's folder, or how far it is; starts making it if it is missing. Never blocks.

        Raises RuntimeFailed once when an attempt has failed; asking again tries again.
        """
        with self._lock:
            folder = self._ready.get(name)
            if folder is not None and folder == self.folder(name) and is_complete(folder):
                return folder
            build = self._builds.get(name)
            if build is None:
                build = self._builds[name] = RuntimeBuild(
                    name, self.folder(name), self._requirements / f"{name}.txt"
                )
                threading.Thread(target=self._run, args=(build,), name=f"runtime {name}", daemon=True).start()
                return Preparing(build.progress())
            if not build.done:
                return Preparing(build.progress())
            del self._builds[name]
            if build.failed is not None:
                raise build.failed
            self._ready[name] = build.folder
            return build.folder

    def close(self) -> None:
        """Cancel running builds: nothing of them is kept, the next use starts again."""
        with self._lock:
            builds = list(self._builds.values())
        for build in builds:
            build.cancel()

    def _run(self, build: RuntimeBuild) -> None:
        build.run()
        self._on_change()


class RuntimeBuild(Build):
    """A runtime of the source tree: what its file pins, and nothing else."""

    may_be_removed = False

    def __init__(self, name: str, folder: Path, requirements: Path) -> None:
        super().__init__(name, folder)
        self._requirements = requirements

    def _install(self, building: Path) -> None:
        self._call(
            "pip", "install", "--require-hashes", "--compile-bytecode",
            "--python", str(building / "bin" / "python"), "-r", str(self._requirements),
        )  # fmt: skip


def main() -> int:
    """Prepare the named runtimes in the foreground."""
    parser = argparse.ArgumentParser(description="Prepare runtimes before their first job.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runtimes", type=Path, default=Path("examples/runtimes"))
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    runtimes = Runtimes(options.data, options.runtimes)
    for name in options.names:
        if not runtimes.has(name):
            sys.stderr.write(f"There is no runtime {name}; there are {', '.join(runtimes.names())}.\n")
            return 2
        build = RuntimeBuild(name, runtimes.folder(name), options.runtimes / f"{name}.txt")
        sys.stdout.write(f"{build.progress() or f'Trying runtime {name}'} ...\n")
        sys.stdout.flush()
        build.run()
        if build.failed is not None:
            sys.stderr.write(f"{build.failed}\n{build.failed.output}\n")
            return 1
        sys.stdout.write(f"Runtime {name} is ready: {build.folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
