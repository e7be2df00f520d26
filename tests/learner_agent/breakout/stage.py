"""A platform's folder with two jobs and a process beside them, on which a program is run as the node daemon does."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.clusters.local.builder import exclusive_lock
from gpu_scheduler.clusters.local.context import DaemonContext
from gpu_scheduler.clusters.local.environment import Folders
from gpu_scheduler.clusters.local.isolation import Sandboxing

HERE = Path(__file__).parent
AGENT = Path(__file__).resolve().parents[3] / "learner_agent"
ROOT, ORDINARY = "root", "ordinary user"
OTHER_USER = "nobody"
"""The ordinary user where root runs the tests; else who runs them is one."""


def python_of(user: str) -> str | None:
    """A Python that this user may run."""
    for candidate in (os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"):
        if not _is_another(user) or _may_run(candidate, user):
            return candidate
    return None


def _is_another(user: str) -> bool:
    """Whether it is not who runs the tests; only root can act as another one."""
    return os.geteuid() == 0 and user != ROOT


def _may_run(program: str, user: str) -> bool:
    try:
        done = subprocess.run(
            [program, "-c", ""], user=user, extra_groups=[], capture_output=True, check=False, cwd="/", env={}
        )
    except OSError:
        return False
    return done.returncode == 0


@dataclass
class Stage:
    """A platform's data folder with two jobs, and one process that is not the attacker's."""

    root: Path
    python: str
    user: str

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def folders(self) -> Folders:
        return Folders(self.data / "nodes" / "node-a" / "job-a-1-0")

    @property
    def other(self) -> Path:
        return self.data / "nodes" / "node-a" / "job-b-1-0"

    @property
    def runtime(self) -> Path:
        return self.data / "runtimes" / "plain-0123456789ab"

    @property
    def agent(self) -> Path:
        return self.root / "learner_agent"

    def service(self, place: str) -> Path:
        """Where a service that trusts its user listens: in a folder of this stage's own below `place`."""
        return Path(place, f".{self.root.name}", "socket")

    def services(self) -> dict[str, str]:
        """Such sockets, by the kind of folder; not each user has a home folder."""
        home = pwd.getpwnam(self.user).pw_dir
        places = {"run": "/run", "var": "/var/lib", "tmp": "/tmp"} | (
            {"home": home} if Path(home).is_dir() else {}
        )
        return {name: str(self.service(place)) for name, place in places.items()}

    def build(self) -> None:
        shutil.copytree(AGENT, self.agent, ignore=shutil.ignore_patterns("__pycache__"))
        for path, text in {
            "secret_key": "key", "keys/postgres": "password", "datasets/set/rows.csv": "1,2",
            "datasets/set/spare.csv": "1",
        }.items():  # fmt: skip
            _write(self.data / path, text)
        for path in ("state/log", "state/delete_me", "state/take_me", "code/train.py"):
            _write(self.other / path, "of another job")
        _write(self.other / "code" / "tool", "#!/bin/sh\n")
        (self.other / "code" / "tool").chmod(0o700)
        self.runtime.mkdir(parents=True)
        with exclusive_lock(self.runtime):
            pass
        self.folders.make()
        (self.folders.root / "data" / "set").symlink_to(self.data / "datasets" / "set")
        for name in ("attacks.py", "victim.py"):
            shutil.copy(HERE / name, self.folders.code / name)
        _write(self.root / "home" / "file", "of the user")
        (self.root / "run").mkdir()
        (self.root / "run" / "socket").touch()
        (self.folders.state / "ready").write_text("{}")
        (self.folders.root / "launcher.log").touch()
        self.data.chmod(0o700)
        self.root.chmod(0o755)
        account = pwd.getpwnam(self.user)
        for place, folders, files in os.walk(self.root):
            for path in (Path(place), *(Path(place, name) for name in (*folders, *files))):
                os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
        for socket in self.services().values():
            folder = Path(socket).parent
            folder.mkdir(mode=0o700)
            os.chown(folder, account.pw_uid, account.pw_gid)

    def clear(self) -> None:
        """Remove what is outside its folder."""
        for socket in self.services().values():
            shutil.rmtree(Path(socket).parent, ignore_errors=True)

    def run(self, command: list[str], env: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
        """As the user; of root in mounts of its own: an attack that succeeds must not reach the machine's."""
        change = ["unshare", "--mount", "--propagation", "private", "--"] if os.geteuid() == 0 else []
        if _is_another(self.user):
            account = pwd.getpwnam(self.user)
            change += [
                "setpriv",
                f"--reuid={account.pw_uid}",
                f"--regid={account.pw_gid}",
                "--clear-groups",
                "--",
            ]
        return subprocess.Popen([*change, *command], env=dict(env), cwd="/", **options)

    @contextmanager
    def victim(self) -> Iterator[dict[str, Any]]:
        services = self.services()
        command = [self.python, str(self.folders.code / "victim.py"), str(self.data), self.root.name]
        command += services.values()
        env = {"LUTHIER_SECRET": "of the shipper", "PATH": os.defpath}
        process = self.run(command, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        with process, process.stdout:
            yield json.loads(process.stdout.readline()) | {"services": services}
            assert process.poll() is None, "it survives"
            process.stdin.close()

    def launch(
        self, env: Mapping[str, str], sandboxing: Sandboxing, program: str = "attacks.py", *arguments: str
    ) -> str:
        """Run a program as the node daemon does; returns its log as it is in the spool."""
        with self.launching(env, sandboxing, program, *arguments) as launcher:
            assert launcher.wait(60) is not None
        said = b"".join(path.read_bytes() for path in sorted(self.folders.state.glob("log/*.seg")))
        return (self.folders.root / "launcher.log").read_text() + said.decode(errors="replace")

    def launching(
        self,
        env: Mapping[str, str],
        sandboxing: Sandboxing,
        program: str,
        *arguments: str,
        memory_mib: int = 0,
        devices: Sequence[Path] = (),
        most_processes: int = 0,
    ) -> subprocess.Popen[bytes]:
        """The launcher of such a program."""
        folders = self.folders
        shared = DaemonContext(self.data, self.agent, self.python, "boot", None).shared_by_programs
        environment = [Path(self.python).parent.parent]
        asked = sandboxing.of_learner(
            folders,
            environment,
            shared,
            devices=devices,
            memory_mib=memory_mib,
            most_processes=most_processes,
        )
        base = {"PATH": os.defpath, "HOME": str(folders.root / "home"), "TMPDIR": str(folders.root / "tmp")}
        base |= folders.named() | ({} if asked is None else {"LUTHIER_SANDBOX": asked})
        command = [self.python, "-E", "-s", "-B", str(self.agent), "launcher"]
        command += ["--", self.python, "-B", program, *arguments]
        with (folders.root / "launcher.log").open("wb") as log:
            return self.run(command, base | env, stdout=log, stderr=log)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture(params=(ROOT, ORDINARY))
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    if os.geteuid() == 0:
        user = ROOT if request.param == ROOT else OTHER_USER
    elif request.param == ROOT:
        pytest.skip("the half as root: the tests do not run as root")
    else:
        user = pwd.getpwuid(os.geteuid()).pw_name
    python = python_of(user)
    if python is None:
        pytest.skip(f"no Python here that {user} may run")
    # Not pytest's own folder, which another user cannot enter.
    with tempfile.TemporaryDirectory(prefix="breakout-") as folder:
        made = Stage(Path(folder), python, user)
        try:
            made.build()
            yield made
        finally:
            made.clear()
