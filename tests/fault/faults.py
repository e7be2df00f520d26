"""Faults of a platform while a job runs. Each takes the platform and the job's id."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

import psutil
import redis

from gpu_scheduler.clusters.local.client import Address
from gpu_scheduler.clusters.local.driver import LocalCluster
from portal.settings.embedded import layout
from tests.platform import Client, Platform


class frozen:
    """SIGSTOP for the time of the block: the process exists and does not respond."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __enter__(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGCONT)


def statuses_until(over: threading.Event, all_here: threading.Barrier, client: Client) -> list[int]:
    """Ask for the list of jobs at the same moment as the others of a crowd, and again and again until it is over.

    Returns the status of each answer.
    """
    all_here.wait()
    statuses = [client.call("GET", "/jobs", timeout_s=200).status]
    while not over.is_set():
        statuses.append(client.call("GET", "/jobs", timeout_s=200).status)
    return statuses


def learner_processes(job: str, word: str) -> list[psutil.Process]:
    """The job's processes on this machine whose command line has the word; found by their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if word in " ".join(process.cmdline()) and process.environ().get("TRAINING_ID") == job:
                found.append(process)
        except psutil.Error:
            continue
    return found


def lines_so_far(client: Client, job: str) -> int:
    """How many lines are stored; 0 while the server does not respond."""
    try:
        answer = client.call("GET", f"/jobs/{job}/logs", learner=0, tail=1)
    except OSError:
        return 0
    return int(answer.body["last"] or 0) if answer.status == 200 else 0


def redis_of(platform: Platform) -> redis.Redis:
    return redis.Redis.from_url(platform.redis_url())


def local_cluster(platform: Platform) -> LocalCluster:
    """The platform's cluster, past the platform."""
    where = layout(platform.data)
    return LocalCluster(Address(where.node_socket, where.node_key))


def kill_shipper(platform: Platform, job: str) -> None:
    for process in learner_processes(job, "shipper"):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill_workers(platform: Platform, job: str) -> None:
    for role in [role for role in platform.pids() if role.startswith(("worker", "scheduler"))]:
        platform.kill(role)


def restart_postgres(platform: Platform, job: str) -> None:
    platform.kill("postgres", signal.SIGQUIT)  # immediate shutdown: a crash as far as the data is concerned


def flush_valkey(platform: Platform, job: str) -> None:
    redis_of(platform).flushall()


def freeze(role: str, seconds: float) -> Callable[[Platform, str], None]:
    """Freeze a process for that long: worse than one that is gone, because connections to it stay open."""

    def stop(platform: Platform, job: str) -> None:
        with frozen(platform.pids()[role]):
            time.sleep(seconds)

    return stop


FAULTS: dict[str, Callable[[Platform, str], object]] = {
    "shipper": kill_shipper,
    "web": lambda platform, job: platform.kill("web"),
    "workers": kill_workers,
    "nodes": lambda platform, job: platform.kill("nodes"),
    "postgres": restart_postgres,
    "flush": flush_valkey,
    "valkey-killed": lambda platform, job: platform.kill("valkey"),
    "valkey-30-s": freeze("valkey", 30),
    "web-45-s": freeze("web", 45),
}
