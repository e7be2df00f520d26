"""Runtimes: virtual environments made on first use from pinned, hash-checked requirement files.

``<data>/runtimes/<name>-<hash>``; the hash covers the requirements and the Python, so a changed file gives a new
environment and old attempts keep theirs. One builder at a time per runtime, over all daemons of a data folder; a
finished environment appears by one rename.

    python -m gpu_scheduler.clusters.local.runtimes --data DIR NAME …    prepares some beforehand
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.clusters.local import processes, runtime_failure
from gpu_scheduler.clusters.local.labels import LABEL
from gpu_scheduler.clusters.local.runtime_failure import RuntimeFailed

READY = ".luthier-ready"
_BUILDING = ".building-"
LAST_LINES = 12
_DOWNLOADING = re.compile(r"Downloading (\S+) \(([\d.]+)([KMG]?)i?B\)")
_DOWNLOADED = re.compile(r"Downloaded (\S+)")
_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
PIP_TO_UV = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_CERT": "SSL_CERT_FILE",
}
"""uv does not read pip's settings; a machine that reaches its packages through them should still work."""


@dataclass(frozen=True, slots=True)
class Preparing:
    """A runtime that is being made, and a message for people; empty while an existing one is only checked."""

    text: str


class Runtimes:
    """The runtimes of one data folder. requirements: the folder of ``<name>.txt`` files."""

    def __init__(self, data: Path, requirements: Path, on_change: Callable[[], None] = lambda: None) -> None:
        self._home = data / "runtimes"
        self._requirements = requirements
        self._on_change = on_change
        self._builds: dict[str, _Build] = {}
        self._ready: dict[str, Path] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._requirements.glob("*.txt"))

    def has(self, name: str) -> bool:
        return LABEL.fullmatch(name) is not None and (self._requirements / f"{name}.txt").is_file()

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
                build = self._builds[name] = _Build(
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

    def sweep(self) -> threading.Thread:
        """Remove, in the background, what builders of a killed daemon left: it may be large."""
        thread = threading.Thread(target=self._sweep, name="sweep of runtimes", daemon=True)
        thread.start()
        return thread

    def _sweep(self) -> None:
        for leftover in self._home.glob(f"*{_BUILDING}*"):
            folder = leftover.with_name(leftover.name.partition(_BUILDING)[0])
            with suppress(OSError), _exclusive_lock(folder, wait=False) as is_ours:
                if is_ours:  # else another builder works there and has already cleaned up
                    shutil.rmtree(leftover, ignore_errors=True)

    def close(self) -> None:
        """Cancel running builds: nothing of them is kept, the next use starts again."""
        with self._lock:
            builds = list(self._builds.values())
        for build in builds:
            build.cancel()

    def _run(self, build: _Build) -> None:
        build.run()
        self._on_change()


class _Build:
    """One attempt to make one runtime."""

    def __init__(self, name: str, folder: Path, requirements: Path) -> None:
        self.name = name
        self.folder = folder
        self.failed: RuntimeFailed | None = None
        self.done = False
        self._making = False
        self._requirements = requirements
        self._sizes: dict[str, int] = {}
        self._got: set[str] = set()
        self._step = ""
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._child: subprocess.Popen[str] | None = None
        self._canceled = False

    def progress(self) -> str:
        """For people: "Preparing runtime pytorch: its packages are installed once per machine, 1.1 of 2.4 GB …".

        Empty while a complete one is tried, which each daemon does once: nothing is installed then.
        """
        if not self._making and is_complete(self.folder):
            return ""
        text = f"Preparing runtime {self.name}: its packages are installed once per machine"
        total = sum(self._sizes.values())
        if self._step == "fetch" and total:
            got = sum(size for package, size in self._sizes.items() if package in self._got)
            size = (
                f"{got / 1e9:.1f} of {total / 1e9:.1f} GB"
                if total >= 1e9
                else f"{got / 1e6:.0f} of {total / 1e6:.0f} MB"
            )
            return f"{text}, {size} fetched"
        return f"{text}, all fetched" if self._step == "install" else text

    def run(self) -> None:
        """Make it unless it is there; ``failed`` says why it could not."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with _exclusive_lock(self.folder):
                if not works(self.folder):
                    self._make()
        except RuntimeFailed as failed:
            self.failed = failed
        except OSError as error:
            self.failed = runtime_failure.of_machine(self.name, error)
        finally:
            self.done = True

    def cancel(self) -> None:
        """Kill the builder, if one is at work."""
        self._canceled = True
        if self._child is not None:
            self._child.kill()

    def _make(self) -> None:
        self._making = True
        for leftover in (self.folder, *self.folder.parent.glob(f"{self.folder.name}{_BUILDING}*")):
            shutil.rmtree(leftover, ignore_errors=True)
        # Named by us: a builder that outlived its killed daemon may still write into its own.
        building = self.folder.with_name(f"{self.folder.name}{_BUILDING}{os.getpid()}")
        try:
            # Relocatable: its scripts still work under the name it gets at the end.
            self._call("venv", "--quiet", "--relocatable", "--python", sys.executable, str(building))
            self._call(
                "pip", "install", "--require-hashes", "--compile-bytecode",
                "--python", str(building / "bin" / "python"), "-r", str(self._requirements),
            )  # fmt: skip
            (building / READY).write_text(self._requirements.name + "\n")
            building.rename(self.folder)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)  # else a disk that it filled would stay full for all
            raise

    def _call(self, *arguments: str) -> None:
        if self._canceled:
            raise runtime_failure.of_builder(self.name, ["the node daemon is going down"])
        uv = find_uv()
        if not uv:
            raise RuntimeFailed(runtime_failure.NO_BUILDER, self.name, temporary=False)
        with processes.spawning:
            child = self._child = subprocess.Popen(
                [*_killed_with_parent(), *uv, *arguments],
                env=_uv_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            processes.note_child(child.pid)
        assert child.stdout is not None
        with child.stdout as lines:
            for line in lines:
                self._parse_line(line.rstrip())
        if child.wait() != 0:
            raise runtime_failure.of_builder(self.name, list(self._last))

    def _parse_line(self, line: str) -> None:
        """Follow uv's own report of what it fetches."""
        self._last.append(line)
        if begun := _DOWNLOADING.search(line):
            self._step = "fetch"
            self._sizes[begun[1]] = int(float(begun[2]) * _BYTES[begun[3]])
        elif got := _DOWNLOADED.search(line):
            self._got.add(got[1])
        elif line.startswith("Prepared "):
            self._step = "install"


def is_complete(folder: Path) -> bool:
    """Say whether a runtime was finished and its Python is still there."""
    return (folder / READY).is_file() and (folder / "bin" / "python").exists()


def works(folder: Path) -> bool:
    """Say whether a runtime is complete and its Python runs."""
    if not is_complete(folder):
        return False
    with processes.spawning:
        child = subprocess.Popen(
            [str(folder / "bin" / "python"), "-c", ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        processes.note_child(child.pid)
    return child.wait() == 0


def find_uv() -> list[str]:
    """uv of the platform's environment, else the machine's; empty where there is none."""
    for candidate in (Path(sys.executable).parent / "uv", shutil.which("uv")):
        if candidate and Path(candidate).exists():
            return [str(candidate)]
    return []


def _killed_with_parent() -> list[str]:
    """A wrapper that lets the kernel kill a builder whose daemon was killed, where the machine has one."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def _uv_environment() -> dict[str, str]:
    env = dict(os.environ)
    for theirs, ours in PIP_TO_UV.items():
        if env.get(theirs):
            env.setdefault(ours, env[theirs])
    env.pop("VIRTUAL_ENV", None)
    env.setdefault("UV_COMPILE_BYTECODE_TIMEOUT", "600")  # its own 60 s are too few where the machine is busy
    return env


@contextmanager
def _exclusive_lock(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the one builder's place for this runtime: waits for another builder to finish, or says that there is one."""
    with open(folder.with_name(f".{folder.name}.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            is_ours = True
        except BlockingIOError:
            is_ours = False
        yield is_ours


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
        build = _Build(name, runtimes.folder(name), options.runtimes / f"{name}.txt")
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
