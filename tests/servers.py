"""A throw-away PostgreSQL and Valkey for tests, from the same code that `manage.py up` uses."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import psycopg2
import redis

from portal.settings.embedded import layout
from portal.supervisor import postgres, valkey
from portal.supervisor.children import dies_with_parent

START_S = 60


def remove_abandoned(folder: Path) -> None:
    """Remove the files of runs that were killed; a name ends with the run's pid, and its servers died with it."""
    for data in folder.glob("luthier-test-*"):
        pid = data.name.rpartition("-")[2]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(layout(data).runtime, ignore_errors=True)
            shutil.rmtree(data, ignore_errors=True)


class Servers:
    """One PostgreSQL without durability and one Valkey; `stop` leaves neither process nor file."""

    def __init__(self, data: Path) -> None:
        self.layout = layout(data)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        remove_abandoned(self.layout.data.parent)
        self.make_folders()
        postgres.prepare(self.layout)
        valkey.prepare(self.layout)
        self._spawn("postgres", postgres.command(self.layout, durable=False))
        self._spawn("valkey", valkey.command(self.layout))
        self._await(lambda: postgres.ensure_database(self.layout), psycopg2.OperationalError)
        client = redis.Redis.from_url(self.layout.redis_url)
        self._await(client.ping, redis.ConnectionError)
        client.close()

    def make_folders(self) -> None:
        for folder in (self.layout.data, self.layout.runtime):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGINT if process is self.processes[0] else signal.SIGTERM)
        for process in self.processes:
            process.wait(timeout=30)
        shutil.rmtree(self.layout.data, ignore_errors=True)
        shutil.rmtree(self.layout.runtime, ignore_errors=True)

    def _spawn(self, name: str, command: list[str]) -> None:
        with open(self.layout.data / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                dies_with_parent(command),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=postgres.clean_environment(),
            )
        self.processes.append(process)

    def _await(self, ready: object, not_yet: type[Exception]) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                ready()  # type: ignore[operator]
                return
            except not_yet as error:
                dead = [process for process in self.processes if process.poll() is not None]
                if dead or time.monotonic() > deadline:
                    logs = "\n".join(
                        path.read_text(errors="replace") for path in self.layout.data.glob("*.log")
                    )
                    raise RuntimeError(f"the test servers did not start:\n{logs}") from error
                time.sleep(0.05)
