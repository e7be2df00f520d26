"""The processes of one cluster, found by a variable in their environment: no pid can be stale or forgotten."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "LUTHIER_TEST_CLUSTER"
END_S = 20


def spawn(command: list[str], log: Path, folder: Path, *, tied: bool) -> subprocess.Popen[bytes]:
    """Start a program of the cluster in this folder. tied: it is killed when this process dies, however that happens.

    A session of its own keeps Ctrl-C from it; its environment has nothing that a user's settings could change.
    """
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    # Programs look below HOME for settings and write caches there.
    env = kept | {MARK: mark(folder), "HOME": str(folder), "KWOK_WORKDIR": str(folder / "kwok")}
    with log.open("ab") as output:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command] if tied else command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def running(folder: Path) -> list[psutil.Process]:
    """Every process of the cluster in this folder, whichever process started it."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # ended meanwhile, or another user's
            if process.environ().get(MARK) == mark(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill(folder: Path) -> None:
    """Kill all of them and wait for their end. Nothing they hold is kept, and the API server would take a minute to
    drain its connections."""
    processes = running(folder)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _, alive = psutil.wait_procs(processes, timeout=END_S)
    if alive:
        raise RuntimeError(f"Not killed within {END_S} s: {', '.join(map(str, alive))}")


def mark(folder: Path) -> str:
    return str(folder.resolve())


def listens(port: int, address: str = "127.0.0.1") -> bool:
    """Whether a program accepts connections at this port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


class PortReservation:
    """Free ports of an address that no other process gets before our programs listen on them.

    A bound socket that does not listen keeps a port; programs that set SO_REUSEPORT, as ours do, may still bind it.
    """

    def __init__(self, number: int, address: str = "127.0.0.1") -> None:
        self._sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(number)]
        for each in self._sockets:
            each.bind((address, 0))
            # Only now: with the option set before, the kernel could choose a port that another such socket has.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)

    @property
    def ports(self) -> list[int]:
        return [each.getsockname()[1] for each in self._sockets]

    def __enter__(self) -> PortReservation:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            each.close()
