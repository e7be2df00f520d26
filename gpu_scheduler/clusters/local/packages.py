"""The environment of a gang: a runtime or a plain Python, and the job's own packages on top.

    <data>/runtimes/<name>-<hash>      a runtime of the source tree, an administrator's, or ``python-3.12``
    <data>/environments/<hash>         a job's packages, shared by all jobs for which the same versions were chosen

A job's packages are resolved against what the runtime has, which is kept where the requirements allow it. The versions
chosen are the job's lock. Only wheels are installed, and nothing of them runs here: a build, or a ``.pth`` file, would
run the job's code as the platform. A source package can be installed by the job itself (``setup: [pip install …]``).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from gpu_scheduler.clusters.base import EnvironmentSpec, GangSpec
from gpu_scheduler.clusters.local import interpreters, layers, package_cache, runtime_failure
from gpu_scheduler.clusters.local.builder import BUILDING, LOCK, Build, Preparing, exclusive_lock, is_complete
from gpu_scheduler.clusters.local.runtime_failure import RuntimeFailed
from gpu_scheduler.clusters.local.runtimes import Runtimes

WHEELS = ("--only-binary", ":all:")
RESOLVING, INSTALLING = ".resolving-", ".installing-"
"""Beginnings of the names of a builder's temporary folders."""
LEFT_S = 24 * 3600.0
"""Far longer than a builder needs one of them."""


@dataclass(frozen=True, slots=True)
class Ready:
    """base: the runtime. top: the job's packages over it, or the runtime itself. lock: the versions chosen."""

    base: Path
    top: Path
    lock: tuple[str, ...] = ()


class Environments:
    """The environments of one data folder. Thread-safe; nothing of it blocks."""

    def __init__(self, data: Path, runtimes: Runtimes, on_change: Callable[[], None] = lambda: None) -> None:
        self.runtimes = runtimes
        self._home = data / "environments"
        self._bases = data / "runtimes"
        self._on_change = on_change
        self._pip: Path | None = None
        self._builds: dict[str, Build] = {}
        self._lock = threading.Lock()

    def refusal(self, spec: GangSpec | EnvironmentSpec) -> str:
        """Why this machine can never make the environment of that gang; empty if it can."""
        if spec.python and spec.python not in interpreters.find():
            return no_python(spec.python)
        if (
            spec.runtime_requirements is None
            and not spec.python
            and not self.runtimes.has(spec.runtime or "")
        ):
            known = ", ".join(self.runtimes.names()) or "none"
            return f"This machine has no runtime {spec.runtime}; it has: {known}."
        return ""

    def get(self, spec: GangSpec) -> Ready | Preparing:
        """The gang's environment, or how far it is; starts making what is missing. Never blocks.

        Raises RuntimeFailed once when an attempt has failed; asking again tries again.
        """
        base = self.base(spec)
        if isinstance(base, Preparing):
            return base
        if not spec.requirements:
            return Ready(base, base)
        build = self._built(f"packages of {spec.name}", lambda: PackagesBuild(spec, self._home, base))
        if isinstance(build, Preparing):
            return build
        assert isinstance(build, PackagesBuild)
        return Ready(base, build.folder if build.missing else base, build.lock)

    def pip(self) -> Path | None:
        """The folder from which jobs get pip, looked for once: that of a later version with the next daemon. Raises
        OSError."""
        if self._pip is None or not self._pip.is_dir():
            self._pip = layers.provide_pip(self._bases)
        return self._pip

    def sweep(self, in_use: Collection[str] = ()) -> threading.Thread:
        """Remove, in the background, what builders of a killed daemon left, and environments that no job uses."""
        kept = {Path(folder) for folder in in_use} | {
            self.runtimes.folder(name) for name in self.runtimes.names()
        }
        thread = threading.Thread(target=self._sweep, args=(kept,), name="sweep of environments", daemon=True)
        thread.start()
        return thread

    def _sweep(self, kept: Collection[Path]) -> None:
        for home in (self._home, self._bases):
            for leftover in home.glob(f".*{BUILDING}*"):
                folder = leftover.with_name(leftover.name[1:].partition(BUILDING)[0])
                with suppress(OSError), exclusive_lock(folder, wait=False) as is_ours:
                    if is_ours:  # else another builder works there and has already cleaned up
                        shutil.rmtree(leftover, ignore_errors=True)
        found = package_cache.scan(self._home), package_cache.scan(self._bases)
        package_cache.remove(package_cache.surplus(*found, kept, time.time()))
        for home in (self._home, self._bases):
            _remove_drafts(home)
            _remove_locks(home)

    def close(self) -> None:
        """Cancel running builds: nothing of them is kept, the next use starts again."""
        self.runtimes.close()
        with self._lock:
            builds = list(self._builds.values())
        for build in builds:
            build.cancel()

    def base(self, spec: GangSpec | EnvironmentSpec) -> Path | Preparing:
        """The runtime below the packages; as ``get``."""
        base = self._base(spec)
        if not isinstance(base, Preparing):
            package_cache.touch(base)
        return base

    def choice(self, spec: EnvironmentSpec, base: Path) -> PackagesBuild:
        """What ``choose`` has to be called on, to know the versions of packages on top of that runtime."""
        return PackagesBuild(spec, self._home, base)

    def _base(self, spec: GangSpec | EnvironmentSpec) -> Path | Preparing:
        if spec.runtime_requirements is None and not spec.python:
            assert spec.runtime is not None, "launch refuses a gang without one"
            return self.runtimes.get(spec.runtime)
        base = ChosenBuild(
            spec.runtime or f"python-{spec.python}", self._bases, spec.python, spec.runtime_requirements or ()
        )
        if is_complete(base.folder) and base.folder.name not in self._builds:
            return base.folder
        build = self._built(base.folder.name, lambda: base)
        return build if isinstance(build, Preparing) else build.folder

    def _built(self, key: str, make: Callable[[], Build]) -> Build | Preparing:
        """The finished build of this key, or its progress; starts it if there is none. Raises RuntimeFailed."""
        with self._lock:
            build = self._builds.get(key)
            if build is None:
                build = self._builds[key] = make()
                threading.Thread(target=self._run, args=(build,), name=key, daemon=True).start()
            if not build.done:
                return Preparing(build.progress())
            del self._builds[key]
        if build.failed is not None:
            raise build.failed
        return build

    def _run(self, build: Build) -> None:
        build.run()
        self._on_change()


class ChosenBuild(Build):
    """A runtime that an administrator made, or a plain Python.

    Its versions are chosen when it is first built, and kept beside it for the day it has to be made again.
    """

    def __init__(self, name: str, home: Path, python: str | None, requirements: Sequence[str]) -> None:
        found = interpreters.find()
        if python is not None and python not in found:
            raise RuntimeFailed(runtime_failure.literal(no_python(python)), name, temporary=False)
        interpreter = os.path.realpath(found[python]) if python else self.python
        wanted = "\n".join([interpreter, *requirements])
        digest = hashlib.sha256(wanted.encode()).hexdigest()[:12]
        super().__init__(name, home / f"{name}-{digest}")
        self.python = interpreter
        self._requirements = tuple(requirements)
        self._version = python

    def _title(self) -> str:
        return super()._title() if self._requirements else f"Preparing Python {self._version}"

    def _install(self, building: Path) -> None:
        if not self._requirements:
            return
        lock = self.folder.with_name(f".{self.folder.name}.lock.txt")
        interpreter = str(building / "bin" / "python")
        if not lock.exists():
            with tempfile.TemporaryDirectory(dir=self.folder.parent, prefix=RESOLVING) as place:
                wanted, chosen = Path(place, "in.txt"), Path(place, "out.txt")
                wanted.write_text("\n".join(self._requirements) + "\n")
                self._call(
                    "pip", "compile", "--generate-hashes", "--no-header", "--no-annotate", "--python", interpreter,
                    str(wanted), "-o", str(chosen), cwd=Path(place),
                )  # fmt: skip
                chosen.rename(lock)
        self._call(
            "pip",
            "install",
            "--require-hashes",
            "--compile-bytecode",
            "--python",
            interpreter,
            "-r",
            str(lock),
        )


class PackagesBuild(Build):
    """The packages of one job. lock: the versions chosen; missing: those of them that the runtime does not have."""

    _fetched = ""

    def __init__(self, spec: GangSpec | EnvironmentSpec, home: Path, base: Path) -> None:
        super().__init__("packages", home / "unknown")
        self.python = str(base / "bin" / "python")
        self.lock = tuple(spec.lock) if isinstance(spec, GangSpec) else ()
        self.missing: tuple[str, ...] = ()
        self._requirements = tuple(spec.requirements)
        self._home = home
        self._base = base

    def run(self) -> None:
        self.choose()
        if self.failed is None and self.missing:
            super().run()
        self._end()

    def choose(self) -> None:
        """Know the versions and what is missing of them; ``failed`` says why they could not be chosen."""
        self._making = True
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            self._choose()
        except RuntimeFailed as failed:
            self.failed = failed
        except OSError as error:
            self._log.add(f"error: {error}")
            self.failed = runtime_failure.of_packages([str(error)])

    def _title(self) -> str:
        return "Preparing packages"

    def _failure(self, lines: Sequence[str]) -> RuntimeFailed:
        return runtime_failure.of_packages(lines)

    def _note(self, building: Path) -> str:
        return package_cache.describe(self._base, building)

    def _works(self) -> bool:
        return is_complete(self.folder)  # running its Python would run what its packages put into .pth files

    def _choose(self) -> None:
        """Choose the versions unless they are given, and name the folder after those that the runtime lacks."""
        site = layers.site_packages(self._base)
        has = installed(site) if site else {}
        if not self.lock:
            self.lock = self._resolve(has)
        self.missing = tuple(line for line in self.lock if not _is_met(line, has))
        digest = hashlib.sha256("\n".join([self._base.name, *self.missing]).encode()).hexdigest()[:24]
        self.folder = self._home / digest

    def _resolve(self, has: dict[str, str]) -> tuple[str, ...]:
        """Versions for the requirements that leave the runtime as it is, else any. Raises RuntimeFailed."""
        with tempfile.TemporaryDirectory(dir=self._home, prefix=RESOLVING) as place:
            if has:
                try:
                    return self._compile(Path(place), [f"{name}=={version}" for name, version in has.items()])
                except RuntimeFailed as failed:
                    if failed.temporary:
                        raise
            return self._compile(Path(place), [])

    def _compile(self, place: Path, constraints: Sequence[str]) -> tuple[str, ...]:
        wanted, fixed, chosen = place / "requirements.txt", place / "runtime.txt", place / "chosen.txt"
        wanted.write_text("\n".join(self._requirements) + "\n")
        fixed.write_text("\n".join(constraints) + "\n")
        chosen.unlink(missing_ok=True)
        self._call(
            "pip", "compile", "--no-header", "--no-annotate", "--strip-extras", *WHEELS, "--python", self.python,
            "--constraint", fixed.name, wanted.name, "-o", chosen.name, cwd=place,
        )  # fmt: skip
        lines = (line.strip() for line in chosen.read_text().splitlines())
        return tuple(sorted(line for line in lines if line and not line.startswith("#")))

    def _install(self, building: Path) -> None:
        with tempfile.TemporaryDirectory(dir=self._home, prefix=INSTALLING) as place:
            chosen = Path(place, "chosen.txt")
            chosen.write_text("\n".join(self.missing) + "\n")
            self._call(
                "pip", "install", "--no-deps", *WHEELS, "--python", str(building / "bin" / "python"),
                "-r", str(chosen), cwd=Path(place),
            )  # fmt: skip
        site = layers.site_packages(building)
        # By an interpreter that reads no .pth file; what does not compile is not for this Python.
        self._run([os.path.realpath(self.python), "-I", "-S", "-m", "compileall", "-q", str(site)])
        layers.put_on(building, self._base)


def _remove_drafts(home: Path) -> None:
    for draft in (*home.glob(f"{RESOLVING}*"), *home.glob(f"{INSTALLING}*")):
        with suppress(OSError):
            if time.time() - draft.stat().st_mtime > LEFT_S:
                shutil.rmtree(draft)


def _remove_locks(home: Path) -> None:
    """Of environments that are gone, unless a builder has one: its folder comes later."""
    for lock in home.glob(f".*{LOCK}"):
        folder = lock.with_name(lock.name[1:].removesuffix(LOCK))
        with suppress(OSError), exclusive_lock(folder, wait=False) as is_ours:
            if is_ours and not folder.exists():
                lock.unlink()


def no_python(version: str) -> str:
    known = ", ".join(interpreters.versions()) or "none"
    return f"This machine has no Python {version}; it has: {known}."


def installed(site: Path) -> dict[str, str]:
    """Name -> version of the packages in a folder; a local part of the version (+cpu) is left out."""
    found: dict[str, str] = {}
    for information in site.glob("*.dist-info"):
        name, _, version = information.name.removesuffix(".dist-info").partition("-")
        found[canonicalize_name(name)] = version.partition("+")[0]
    return found


def _is_met(line: str, has: dict[str, str]) -> bool:
    name, _, version = line.partition("==")
    return has.get(canonicalize_name(name.strip())) == version.strip().partition("+")[0]
