"""Debian's Slurm with one node on this machine, in a folder of its own: configuration, daemons and commands.

Nothing outside the folder is read or written, except that the packages are installed where they are missing and slurmd
writes to the system's log. No daemon listens beyond the loopback interface, and all end with the context.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil

from gpu_scheduler.clusters.local.processes import become_subreaper
from tests.platform import free_port, wait_for

PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
"""With the folders of daemons, which are not in the PATH of an ordinary user."""
PACKAGES = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "sbatch": "slurm-wlm", "munged": "munge"}
"""Programs, and the Debian package that has each."""
NODE, STEP = "node-a", "slurmstepd"


class MissingPackages(RuntimeError):
    """Slurm is not installed, and cannot be installed from here."""


def missing_packages() -> list[str]:
    return sorted({package for program, package in PACKAGES.items() if not shutil.which(program, path=PATH)})


def install() -> None:
    """Install what is missing with apt; MissingPackages says what to do where that is not possible."""
    packages = missing_packages()
    if not packages:
        return
    remedy = f"install {' and '.join(packages)} (Debian: apt-get install {' '.join(packages)})"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise MissingPackages(
            f"Slurm is not complete on this machine: {remedy}, or run this as root on Debian"
        )
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    commands = (
        ["apt-get", "-q", "update"],
        ["apt-get", "-qy", "install", "--no-install-recommends", *packages],
    )
    for command in commands:
        done = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingPackages(f"{' '.join(command)} failed: {remedy}\n{done.stderr.strip()[-2000:]}")
    if missing_packages():
        raise MissingPackages(
            f"apt-get installed {', '.join(packages)}, yet {', '.join(missing_packages())} lacks programs"
        )


def configuration(folder: Path, *, host: str, user: str, cpus: int, jobs: int, ports: tuple[int, int]) -> str:
    """slurm.conf. Beyond names, paths and ports only what a container without systemd and control groups needs, and
    room for as many jobs (MaxJobCount, MaxArraySize): Slurm's own limits are 10,000 and 1,000.

    host: this machine's name without its domain, by which slurmctld recognizes itself. ports: of slurmctld and slurmd.
    """
    lines = {
        "ClusterName": "bench",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": ports[0],
        "SlurmdPort": ports[1],
        "CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny",
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.socket",
        "CredType": "cred/munge",
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "slurmd.pid",
        "SlurmctldLogFile": folder / "slurmctld.log",
        "SlurmdLogFile": folder / "slurmd.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "SlurmdParameters": "config_overrides",
        "ReturnToService": 2,
        "MaxJobCount": jobs,
        "MaxArraySize": jobs,
        "NodeName": f"{NODE} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN",
        "PartitionName": f"all Nodes={NODE} Default=YES MaxTime=INFINITE State=UP",
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def states(listing: str) -> Counter[str]:
    """Jobs by state, of what `scontrol -o show job` printed: one line per job or task of an array; an array's tasks
    that wait share a line ("ArrayTaskId=7-999%40")."""
    found: Counter[str] = Counter()
    for line in listing.splitlines():
        fields = dict(part.partition("=")[::2] for part in line.split())
        if "JobState" in fields:
            found[fields["JobState"]] += tasks(fields.get("ArrayTaskId", ""))
    return found


def tasks(ids: str) -> int:
    """How many tasks of an array these are: "7", "3,7-999%40"; a job that is no array is one."""
    count = 0
    for part in ids.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        count += int(last) - int(first) + 1 if last else 1
    return count


class Slurm:
    """A running cluster and its client commands."""

    def __init__(self, folder: Path, processes: dict[str, subprocess.Popen[bytes]]) -> None:
        self.folder, self.processes = folder, processes
        self._steps_cpu_s = 0.0

    @property
    def environment(self) -> dict[str, str]:
        others = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))
        }
        return {**others, "PATH": PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def call(self, *command: str) -> str:
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def states(self) -> Counter[str]:
        """Jobs by state; those whose daemon has ended are reaped meanwhile."""
        self.reap()
        return states(self.call("scontrol", "-o", "show", "job"))

    def first_line_s(self, script: Path, out: Path) -> float:
        """Seconds from sbatch until the program's first line is in its file."""
        began = time.monotonic()
        self.call("sbatch", "--quiet", f"--output={out}", str(script))
        wait_for(lambda: out.exists() and out.stat().st_size, within_s=60, every_s=0.01, what=str(out))
        return time.monotonic() - began

    def submit_many(self, script: Path, count: int, connections: int, *options: str) -> None:
        """So many single submits by as many shells as there are connections, each one after the other."""
        loop = 'i=0; while [ $i -lt "$0" ]; do "$@" || exit 1; i=$((i + 1)); done'
        command = ("sbatch", "--quiet", "--output=/dev/null", *options, str(script))
        shares = [count // connections + (place < count % connections) for place in range(connections)]
        shells = [
            subprocess.Popen(["sh", "-c", loop, str(share), *command], env=self.environment, cwd=self.folder)
            for share in shares
        ]
        codes = [shell.wait() for shell in shells]
        if any(codes):
            raise RuntimeError(f"sbatch failed: {codes}; see {self.folder / 'slurmctld.log'}")

    def reap(self) -> None:
        """Wait for the jobs' own daemons that have ended: slurmd leaves them to process 1, here to this process."""
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
                if child.name() == STEP and child.status() == psutil.STATUS_ZOMBIE:
                    used = os.wait4(child.pid, 0)[2]
                    self._steps_cpu_s += used.ru_utime + used.ru_stime

    def cpu_s(self) -> float:
        """CPU-seconds so far of the daemons, those of ended jobs included."""
        self.reap()
        daemons = [psutil.Process(process.pid).cpu_times() for process in self.processes.values()]
        return self._steps_cpu_s + sum(sum(times[:4]) for times in daemons)


@contextlib.contextmanager
def running(folder: Path, *, cpus: int, jobs: int) -> Iterator[Slurm]:
    """Start munged, slurmctld and slurmd in an empty folder, and end them whatever happens."""
    become_subreaper()
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)  # munged's socket must be reachable
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(1024))
    host = socket.gethostname().partition(".")[0]
    text = configuration(
        folder, host=host, user=getpass.getuser(), cpus=cpus, jobs=jobs, ports=(free_port(), free_port())
    )
    (folder / "slurm.conf").write_text(text)
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munged += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    slurm = Slurm(folder, {})
    with contextlib.ExitStack() as ends:
        ends.callback(end, slurm)

        def start(name: str, *command: str) -> None:
            with (folder / f"{name}.out").open("wb") as out:
                slurm.processes[name] = subprocess.Popen(
                    command,
                    env=slurm.environment,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )

        def answers(*command: str) -> bool:
            for name, process in slurm.processes.items():
                if process.poll() is not None:
                    log = folder / f"{name}.out"
                    raise RuntimeError(f"{name} ended with {process.returncode}:\n{log.read_text()[-4000:]}")
            try:
                return "idle" in slurm.call(*command)
            except RuntimeError:
                return False

        start("munged", *munged)
        wait_for((folder / "munge.socket").exists, within_s=30, what=f"munged; see {folder}")
        start("slurmctld", "slurmctld", "-D")
        start("slurmd", "slurmd", "-D", "-N", NODE)
        ready = ("sinfo", "--noheader", "--format=%t")
        wait_for(lambda: answers(*ready), within_s=60, what=f"an idle node; see {folder}")
        yield slurm


def end(slurm: Slurm) -> None:
    """End what still runs of the jobs, and the daemons, the last one first."""
    with contextlib.suppress(RuntimeError, OSError, subprocess.TimeoutExpired):
        slurm.call("scancel", "--signal=KILL", "--full", "--state=RUNNING", f"--user={getpass.getuser()}")
    below = [child for child in psutil.Process().children(recursive=True) if child.name() == STEP]
    for process in reversed(slurm.processes.values()):
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for child in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(below, 10)
    slurm.reap()
