"""What this machine adds to the environments of a learner's two processes: folders, loopback addresses, devices.

Of the daemon's own environment both get only a few variables of the machine; only the shipper gets the secret.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.clusters import environment
from gpu_scheduler.clusters.base import GangSpec
from gpu_scheduler.clusters.local.processes import MARK

SANDBOX, PROGRAM_ENV = "LUTHIER_SANDBOX", "LUTHIER_PROGRAM_ENV"
LOADS_CODE = re.compile(
    "LD_|MALLOC_|OPENSSL_|PYTHON|GLIBC_|GCONV_|GETCONF_|RES_|RESOLV_"
    "|(NLSPATH|LOCPATH|NIS_PATH|TZDIR|HOSTALIASES|LOCALDOMAIN)$"
)
"""Variables by which a process runs or reads what they name as it starts: those that glibc ignores in a program with
the setuid bit, and what Python and OpenSSL have of the kind."""
PASSED_ON = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH")
PACKAGE_SOURCES = (
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_TRUSTED_HOST", "PIP_CERT", "PIP_DEFAULT_TIMEOUT",
    "PIP_DISABLE_PIP_VERSION_CHECK", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
TO_SHIPPER = (
    "PATH", "HOME", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one learner, all below root."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def code(self) -> Path:
        return self.root / "code"

    @property
    def environment(self) -> Path:
        """The learner's own Python environment, in which `pip install` puts packages."""
        return self.root / "env"

    @property
    def launcher_log(self) -> Path:
        return self.root / "launcher.log"

    @property
    def shipper_log(self) -> Path:
        return self.root / "shipper.log"

    def named(self) -> dict[str, str]:
        """The folders by their FfDL names."""
        return {
            "JOB_STATE_DIR": str(self.state),
            "CHECKPOINT_DIR": str(self.state / "checkpoints"),
            "MODEL_DIR": str(self.code),
            "DATA_DIR": str(self.root / "data"),
            "RESULT_DIR": str(self.root / "results"),
            "LOG_DIR": str(self.root / "logs"),
        }

    def for_program(self) -> list[str]:
        """Those in which the program writes; the logs of its launcher and shipper lie beside them."""
        return [
            *self.named().values(),
            str(self.environment),
            str(self.root / "home"),
            str(self.root / "tmp"),
        ]

    def make(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in self.for_program():
            Path(folder).mkdir(parents=True, exist_ok=True)


def of_launcher(
    spec: GangSpec,
    rank: int,
    *,
    folders: Folders,
    packages: Sequence[Path],
    devices: Sequence[str],
    ports: Sequence[int],
    mark: str,
    sandbox: str | None = None,
) -> dict[str, str]:
    """The launcher's environment, which is also the training program's: with its own secrets, none of the platform's.

    packages: the environments below the learner's own, the topmost first. ports: one per rank, then one for the gang's
    master.
    """
    given = spec.learners[rank].env
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env |= spec.secrets
    env |= {"HOME": str(folders.root / "home"), "TMPDIR": str(folders.root / "tmp")}
    *workers, master = (f"{LOOPBACK}:{port}" for port in ports)
    rendezvous = environment.Rendezvous(workers, master, str(folders.state / "hostfile"))
    env |= environment.of_program(spec, rank, rendezvous=rendezvous, folders=folders.named())
    own = folders.environment
    layers = [own, *packages] if (own / "pyvenv.cfg").exists() else [*packages]
    paths = dict.fromkeys(str(layer / "bin") for layer in layers)
    return _guarded(
        package_sources(os.environ)
        | env
        | {
            "PATH": os.pathsep.join([*paths, *filter(None, [given.get("PATH")]), SYSTEM_PATH]),
            "VIRTUAL_ENV": str(layers[0]),
            "CUDA_VISIBLE_DEVICES": ",".join(devices),
            MARK: mark,
        },
        {*given, *spec.secrets},
        sandbox,
    )


def _guarded(env: dict[str, str], given: set[str], sandbox: str | None) -> dict[str, str]:
    """The launcher enters the sandbox; nothing of the job may run in it before, so it hands these on to the program."""
    if sandbox is None:
        return env
    later = {name: env.pop(name) for name in sorted(given & env.keys()) if LOADS_CODE.match(name)}
    # git ends where it cannot read the machine's settings, which may hold passwords.
    return {"GIT_CONFIG_NOSYSTEM": "1"} | env | {PROGRAM_ENV: json.dumps(later)} | _sandbox(sandbox)


def _sandbox(asked: str | None) -> dict[str, str]:
    return {} if asked is None else {SANDBOX: asked}


def package_sources(env: Mapping[str, str]) -> dict[str, str]:
    """Where this machine's packages come from, for `pip install` in a job; an address with a password stays here."""
    return {name: env[name] for name in PACKAGE_SOURCES if env.get(name) and "@" not in env[name]}


def of_shipper(
    spec: GangSpec,
    rank: int,
    *,
    folders: Folders,
    data_root: Path,
    import_from: Path,
    mark: str,
    sandbox: str | None = None,
) -> dict[str, str]:
    """The shipper's environment: what it needs to reach the server and the store, and its secret.

    Without a sandbox programs can read it in /proc, so none of the platform's own secrets are in it.
    """
    return {
        **{name: os.environ[name] for name in (*PASSED_ON, *TO_SHIPPER) if name in os.environ},
        **environment.of_shipper(spec, rank, folders=folders.named()),
        "PYTHONPATH": str(import_from),
        "LUTHIER_DATA_ROOT": str(data_root),
        MARK: mark,
        **_sandbox(sandbox),
    }


def agent_command(python: Path, agent: Path) -> list[str]:
    """How a Python that is not the platform's runs the learner agent."""
    return [str(python), "-E", "-s", str(agent)]


def of_fork_server(import_from: Path) -> dict[str, str]:
    """The environment of a process from which launchers or shippers are forked: nothing of a job, nothing secret."""
    kept = {name: os.environ[name] for name in (*PASSED_ON, "PATH") if name in os.environ}
    return {**kept, "PYTHONPATH": str(import_from)}
