"""What keeps programs of this machine apart: whether the agent's sandbox works here, what each learner may reach.

The agent enters the sandbox (learner_agent.sandbox); this side tries it once, and names the paths.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gpu_scheduler.clusters import base
from gpu_scheduler.clusters.local import environment
from gpu_scheduler.clusters.local.environment import Folders

PROBE_S = 30.0
PACKAGES = ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
SHARED_TMP = Path("/tmp")  # noqa: S108 (hidden by a folder of the learner's own)
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "PIP_CERT")


class Mode(StrEnum):
    """LUTHIER_LOCAL_SANDBOX."""

    AUTO = "auto"
    REQUIRED = "required"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Sandboxing:
    """What this machine does. landlock: the kernel's version of it, 0 without a sandbox; then why_not says why.

    reads, writes: paths that the operator lets every program reach, besides its own. private: what no program may reach
    by any other path that it is granted.
    """

    landlock: int = 0
    namespaces: bool = False
    why_not: str = "LUTHIER_LOCAL_SANDBOX is off"
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    private: tuple[Path, ...] = ()

    def report(self) -> base.Isolation:
        """For people."""
        if not self.landlock:
            return base.Isolation(False, f"programs are not isolated: {self.why_not}")
        if self.namespaces:
            return base.Isolation(True, f"programs are isolated by Landlock {self.landlock} and namespaces")
        missing = (
            f"without namespaces ({self.why_not}), so a program may change modes of the platform's files, and have "
            "services of its user act for it (systemd, terminals, Docker: sockets with a path)"
        )
        return base.Isolation(False, f"programs are partly isolated by Landlock {self.landlock}, {missing}")

    def of_learner(
        self,
        folders: Folders,
        environments: Sequence[Path],
        shared: Sequence[Path],
        *,
        devices: Sequence[Path] = (),
        memory_mib: int = 0,
        most_processes: int = 0,
    ) -> str | None:
        """What the agent reads from LUTHIER_SANDBOX; None without a sandbox.

        environments: of which its Python runs. shared: other folders that every program reads. devices: files of the
        GPUs that it has. memory_mib: the limit of the learner, and of what its /dev/shm holds; 0: none. most_processes:
        with threads; 0: no limit.
        """
        if not self.landlock:
            return None
        certificates = [Path(os.environ[name]) for name in CERTIFICATES if os.environ.get(name)]
        pythons = [_interpreter(environment) for environment in environments]
        reads = [*environments, *shared, *certificates, *self.reads]
        writes = [Path(folder) for folder in folders.for_program()] + [
            path for path in self.writes if path.exists()
        ]
        named = [folders.root, *reads, *pythons, *writes]
        tmp_is_free = not any(
            _contains(SHARED_TMP, path) or _contains(SHARED_TMP.resolve(), path.resolve()) for path in named
        )
        return json.dumps(
            {
                "read": _named(reads),
                "pythons": _named(pythons),
                "private": sorted(str(path.resolve()) for path in self.private),
                "write": sorted(map(str, writes)),
                "devices": sorted(map(str, devices)),
                "own": str(folders.root),
                "tmp": str(folders.root / "tmp") if tmp_is_free else None,
                "namespaces": self.namespaces,
                "memory_mib": memory_mib,
                "processes": most_processes,
            }
        )


OFF = Sandboxing()


def probe(
    command: Sequence[str],
    mode: Mode,
    *,
    reads: Sequence[Path] = (),
    writes: Sequence[Path] = (),
    private: Sequence[Path] = (),
) -> Sandboxing:
    """Try the sandbox. command: runs the agent. A trial that says nothing counts as failed."""
    paths = Sandboxing(reads=tuple(reads), writes=tuple(writes), private=tuple(private))
    if mode is Mode.OFF:
        return paths
    try:
        done = subprocess.run(
            [*command, "sandbox"],
            env={"PATH": os.defpath},
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return replace(paths, why_not=str(error))
    try:
        found = json.loads(done.stdout) if done.returncode == 0 else {}
        why_not = "; ".join(map(str, found["without"]))
        return replace(
            paths, landlock=int(found["landlock"]), namespaces=found["namespaces"] is True, why_not=why_not
        )
    except (ValueError, KeyError, TypeError):
        return replace(paths, why_not=done.stderr.strip()[-500:] or "the check of the sandbox said nothing")


def make_cuda_device(devices: Path = Path("/dev")) -> None:
    """Have the driver make the device that a first CUDA program makes with rights that no confined one has. Without it
    CUDA finds no GPU, and says only that."""
    tool = shutil.which("nvidia-modprobe")
    if tool and (devices / "nvidiactl").exists() and not (devices / "nvidia-uvm").exists():
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([tool, "-u", "-c", "0"], capture_output=True, timeout=PROBE_S, check=False)


def package_folders(env: Mapping[str, str], private: Sequence[Path]) -> list[Path]:
    """Folders of this machine to which a learner's pip is led; not one that would undo the isolation."""
    words = " ".join(environment.package_sources(env).get(name, "") for name in PACKAGES).split()
    named = (unquote(urlsplit(word).path) if word.startswith("file:") else word for word in words)
    return [path for path in map(Path, named) if path.is_absolute() and not wrong_paths("", [path], private)]


def wrong_paths(name: str, paths: Sequence[Path], private: Sequence[Path]) -> list[str]:
    """What is wrong with paths that the operator adds: one with what is private would undo the isolation."""
    return [
        f"{name}: {path} and {kept}, which no program may reach, contain each other; name a path apart from it"
        for path in paths
        for kept in private
        if _contains(path.resolve(), kept.resolve()) or _contains(kept.resolve(), path.resolve())
    ]


def home_of_the_user(named: Sequence[Path]) -> list[Path]:
    """The home folder of the platform's user, which may lie below a folder that programs read; none if the operator
    names it or a folder that contains it, and none that is not the user's own, as those of the system's accounts."""
    try:
        home = Path(pwd.getpwuid(os.getuid()).pw_dir).resolve()
        is_own = home != Path("/") and home.stat().st_uid == os.getuid()
    except (KeyError, OSError):
        return []
    return [home] if is_own and not any(_contains(path.resolve(), home) for path in named) else []


def _named(paths: Sequence[Path]) -> list[str]:
    """Each as it was named and as it really is."""
    return sorted({str(form) for path in paths for form in (path, path.resolve()) if form != Path("/")})


def _interpreter(environment: Path) -> Path:
    """The folder of the Python that an environment's own leads to, with its standard library."""
    return Path(os.path.realpath(environment / "bin" / "python")).parent.parent


def _contains(folder: Path, path: Path) -> bool:
    return path == folder or folder in path.parents
