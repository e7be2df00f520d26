"""Making one environment of the cluster's data folder with uv: once, whole or not at all, with progress.

One builder at a time per environment, over all processes of a data folder; a finished environment appears by one
rename. uv gets nothing of the platform's own environment but what it needs, and never downloads an interpreter.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.clusters.local import processes, runtime_failure
from gpu_scheduler.clusters.local.runtime_failure import RuntimeFailed

READY = ".luthier-ready"
BUILDING = ".building-"
LOCK = ".lock"
"""In the name of a folder that is no environment yet, or no longer. A dot hides it from `ls` and from `sklearn-*`."""
LAST_LINES = 40
"""Of one command, from which its failure is read."""
LOG_BYTES, LINE_CHARS = 32 * 1024, 1000
"""What is kept of all that a build printed: the end of it, and of a line the begin."""
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
"""Of a package index; uv leaves them out itself where it knows."""
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


PASSED_ON = frozenset(
    {
        "HOME", "PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "NETRC", "TMPDIR", "TZ",
        "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    }
)  # fmt: skip
PASSED_PREFIXES = ("PIP_", "SSL_CERT_", "UV_", "XDG_")


@dataclass(frozen=True, slots=True)
class Preparing:
    """A runtime that is being made, and a message for people; empty while an existing one is only checked."""

    text: str


class Build:
    """One attempt to make one environment; a subclass says what is installed."""

    python = sys.executable
    """Whose standard library and interpreter it has."""
    within: tuple[str, ...] = ()
    """A command in front of each of its commands, such as one that sets limits."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.failed: RuntimeFailed | None = None
        self.done = False
        self._making = False
        self._sizes: dict[str, int] = {}
        self._got: set[str] = set()
        self._step = ""
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._log = _Log()
        self._child: subprocess.Popen[str] | None = None
        self._canceled = False

    def progress(self) -> str:
        """For people: "Preparing runtime pytorch: its packages are installed once per machine, 1.1 of 2.4 GB …".

        Empty while a complete one is tried, which each daemon does once: nothing is installed then.
        """
        if not self._making and is_complete(self.folder):
            return ""
        text = self._title()
        total = sum(self._sizes.values())
        if self._step == "fetch" and total:
            got = sum(size for package, size in self._sizes.items() if package in self._got)
            size = (
                f"{got / 1e9:.1f} of {total / 1e9:.1f} GB"
                if total >= 1e9
                else f"{got / 1e6:.0f} of {total / 1e6:.0f} MB"
            )
            return f"{text}, {size}{self._fetched}"
        return f"{text}, all fetched" if self._step == "install" else text

    _fetched = " fetched"

    def _title(self) -> str:
        return f"Preparing runtime {self.name}: its packages are installed once per machine"

    def _install(self, building: Path) -> None:
        """Install what it holds into a new, empty environment. Raises RuntimeFailed."""
        raise NotImplementedError

    def _note(self, building: Path) -> str:
        """The content of .luthier-ready."""
        return self.name + "\n"

    def _works(self) -> bool:
        """Whether it is there and need not be made."""
        return works(self.folder)

    def _failure(self, lines: Sequence[str]) -> RuntimeFailed:
        """What the builder's last lines mean."""
        return runtime_failure.of_builder(self.name, lines)

    def run(self) -> None:
        """Make it unless it is there; ``failed`` says why it could not."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(self.folder):
                if self._works():
                    os.utime(self.folder / READY)  # its last use, before anybody may remove it
                else:
                    self._make()
        except RuntimeFailed as failed:
            self.failed = failed
        except OSError as error:
            self._log.add(f"error: {error}")
            self.failed = runtime_failure.of_machine(self.name, error)
        finally:
            self._end()

    def _end(self) -> None:
        """Give a failure all that was printed: the last lines are those of one command."""
        if self.failed is not None:
            self.failed.output = self._log.text or self.failed.output
        self.done = True

    def cancel(self) -> None:
        """Kill the builder, if one is at work."""
        self._canceled = True
        if self._child is not None:
            self._child.kill()

    def _make(self) -> None:
        self._making = True
        for leftover in (self.folder, *self.folder.parent.glob(f".{self.folder.name}{BUILDING}*")):
            shutil.rmtree(leftover, ignore_errors=True)
        # Named by us: a builder that outlived its killed daemon may still write into its own.
        building = self.folder.with_name(f".{self.folder.name}{BUILDING}{os.getpid()}")
        try:
            # Relocatable: its scripts still work under the name it gets at the end.
            self._call("venv", "--quiet", "--relocatable", "--python", self.python, str(building))
            self._install(building)
            (building / READY).unlink(missing_ok=True)  # of a package: a link into the builder's cache
            (building / READY).write_text(self._note(building))
            building.rename(self.folder)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)  # else a disk that it filled would stay full for all
            raise

    def _call(self, *arguments: str, cwd: Path | None = None) -> None:
        """Run uv with these arguments. Raises RuntimeFailed."""
        uv = find_uv()
        if not uv:
            raise RuntimeFailed(runtime_failure.NO_BUILDER, self.name, temporary=False)
        if self._run([*uv, *arguments], cwd) != 0:
            raise self._failure(list(self._last))

    def _run(self, command: Sequence[str], cwd: Path | None = None) -> int:
        """The exit code of a child that ends with this process."""
        if self._canceled:
            raise runtime_failure.of_builder(self.name, ["the node daemon is going down"])
        self._last.clear()
        self._log.add(f"$ {_shown(command)}")
        with processes.spawning:
            child = self._child = subprocess.Popen(
                [*_killed_with_parent(), *self.within, *command],
                env=builder_environment(os.environ),
                cwd=cwd,
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
        return child.wait()

    def _parse_line(self, line: str) -> None:
        """Follow uv's own report of what it fetches."""
        self._last.append(line)
        self._log.add(line)
        if begun := _DOWNLOADING.search(line):
            self._step = "fetch"
            self._sizes[begun[1]] = int(float(begun[2]) * _BYTES[begun[3]])
        elif got := _DOWNLOADED.search(line):
            self._got.add(got[1])
        elif line.startswith("Prepared "):
            self._step = "install"


class _Log:
    """The end of what a build printed, in bounded memory."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._bytes = 0

    def add(self, line: str) -> None:
        line = _CREDENTIALS.sub("", line)[:LINE_CHARS]
        self._lines.append(line)
        self._bytes += len(line.encode()) + 1
        while self._bytes > LOG_BYTES:
            self._bytes -= len(self._lines.popleft().encode()) + 1

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines)


def _shown(command: Sequence[str]) -> str:
    """A builder's command as the log shows it: with the names of files, not with their folders."""
    return " ".join(Path(part).name if part.startswith("/") else part for part in command)


def is_complete(folder: Path) -> bool:
    """Say whether a runtime was finished and its Python is still there."""
    return (folder / READY).is_file() and (folder / "bin" / "python").exists()


def works(folder: Path) -> bool:
    """Say whether a runtime is complete and its Python runs.

    Without `site`, and with a builder's environment: its packages' .pth files run code.
    """
    if not is_complete(folder):
        return False
    with processes.spawning:
        child = subprocess.Popen(
            [str(folder / "bin" / "python"), "-I", "-S", "-c", ""],
            env=builder_environment(os.environ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
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


def builder_environment(given: Mapping[str, str]) -> dict[str, str]:
    """What a builder gets of an environment: where packages come from, and nothing else that the platform has."""
    env = {
        name: value for name, value in given.items() if name in PASSED_ON or name.startswith(PASSED_PREFIXES)
    }
    for theirs, ours in PIP_TO_UV.items():
        if env.get(theirs):
            env.setdefault(ours, env[theirs])
    env.setdefault("UV_COMPILE_BYTECODE_TIMEOUT", "600")  # its own 60 s are too few where the machine is busy
    return env | {"UV_PYTHON_DOWNLOADS": "never"}


@contextmanager
def exclusive_lock(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the one builder's place for this runtime: waits for another builder to finish, or says that there is one."""
    path = folder.with_name(f".{folder.name}{LOCK}")
    while True:
        with open(path, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                is_ours = True
            except BlockingIOError:
                is_ours = False
            if not is_ours or _is_at(lock.fileno(), path):  # else it was removed while this one waited
                yield is_ours
                return


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
