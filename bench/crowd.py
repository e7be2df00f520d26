"""Many tenants that submit at once through REST, on a platform whose cluster is `memory`: what benches of it share."""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2

from bench.played import learners
from bench.submits import cpu_s
from portal.settings.embedded import layout
from tests.platform import Client, Platform, running, wait_for

SERVERS = ("web", "worker", "scheduler", "postgres", "valkey")
ADMINS_REASON = "measuring a crowd"
UNFINISHED = """
SELECT EXISTS (
  SELECT FROM jobs_job WHERE NOT settled AND state NOT IN ('COMPLETED', 'FAILED', 'CANCELED')
)
"""  # by the index of unsettled jobs: a count would read every row four times a second
WAITS = """
SELECT t.slug, j.name,
  extract(epoch FROM min(e.at) FILTER (WHERE e.code IN ('PLACED', 'WAITING')) - j.created_at),
  extract(epoch FROM min(e.at) FILTER (WHERE e.code = 'PLACED') - j.created_at)
FROM jobs_job j JOIN tenants_tenant t ON t.id = j.tenant_id JOIN jobs_jobevent e ON e.job_id = j.id
GROUP BY j.id, t.slug
"""
COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
DECISIONS = "SELECT count(*) FROM jobs_jobevent WHERE code IN ('PLACED', 'WAITING')"


@dataclass(frozen=True)
class Account:
    """Who submits for one tenant."""

    tenant: str
    token: str


@dataclass(frozen=True)
class Request:
    """One job to submit, at_s seconds after the begin or as soon after that as there is a connection."""

    at_s: float
    account: Account
    name: str
    seconds: float
    cpus: int = 1
    priority: str = "normal"

    def spec(self) -> dict[str, Any]:
        return {
            "apiVersion": "luthier/v1",
            "name": self.name,
            "framework": "plain",
            "code": {"files": {"main.py": "print('played')\n"}},
            "command": f"sleep {self.seconds:g}",
            "resources": {"learners": 1, "gpus": 0, "cpus": self.cpus, "memory": "64Mi"},
            "priority": self.priority,
        }


@dataclass(frozen=True)
class Crowd:
    """A platform, and the process that plays its learners."""

    platform: Platform
    players: subprocess.Popen[bytes]

    def is_over(self) -> bool:
        """Whether no job is left that has not ended; RuntimeError if none can end any more."""
        if self.players.poll() is not None:
            raise RuntimeError(f"the played learners ended with {self.players.returncode}")
        return not rows(self.platform, UNFINISHED)[0][0]


@contextmanager
def crowded(nodes: Sequence[int]) -> Iterator[Crowd]:
    """A platform whose memory cluster has nodes of so many CPU slots, and whose learners are played.

    One worker: the cluster exists in its process alone.
    """
    names = ",".join(f"node-{number}:cpu:{slots}" for number, slots in enumerate(nodes))
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder) / "data", nodes=names, workers=1, LUTHIER_CLUSTER="memory") as platform,
        learners(platform) as players,
    ):
        yield Crowd(platform, players)


@dataclass(frozen=True)
class _Admin:
    """An admin who waits where the platform says so: fifty tenants are more than its budget for a minute."""

    client: Client

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        while (answer := self.client.call("POST", path, body)).status == HTTPStatus.TOO_MANY_REQUESTS:
            time.sleep(float(answer.headers["retry-after"]))
        assert answer.status in (HTTPStatus.OK, HTTPStatus.CREATED), (path, answer)
        return answer.body


def account(platform: Platform, slug: str, limit: int, *, cohort: str = "", borrows: int = 0) -> Account:
    """A tenant with so many CPU slots, and a program that may submit for it. borrows: slots, within its cohort."""
    admin = _Admin(platform.client("admin"))
    admin.post("/tenants", {"slug": slug, "name": slug, "reason": ADMINS_REASON})
    whole = {"tenant": slug, "gpu_type": "", "cohort": cohort}
    terms = {"tenant": slug, "gpu_type": "cpu", "limit": limit, "borrowing_limit": borrows}
    changes = [whole, terms] if cohort else [{"tenant": slug, "gpu_type": "cpu", "limit": limit}]
    admin.post("/quota-changes", {"changes": changes, "reason": ADMINS_REASON})
    admin.post(f"/tenants/{slug}/service-accounts", {"name": "crowd"})
    made = admin.post(f"/tenants/{slug}/service-accounts/crowd/tokens", {"name": "crowd"})
    return Account(slug, made["secret"])


def submit_all(platform: Platform, requests: Sequence[Request], connections: int) -> list[float]:
    """Submit each at its time over so many connections; the seconds that each submit took. All are accepted."""
    waiting = iter(sorted(requests, key=lambda request: request.at_s))
    turn, began = threading.Lock(), time.monotonic()

    def work(_: int) -> list[float]:
        connection = http.client.HTTPConnection(urlsplit(platform.url).netloc, timeout=120)
        took: list[float] = []
        while True:
            with turn:
                request = next(waiting, None)
            if request is None:
                connection.close()
                return took
            time.sleep(max(0.0, began + request.at_s - time.monotonic()))
            sent = time.monotonic()
            connection.request(
                "POST",
                f"/api/v1/tenants/{request.account.tenant}/jobs",
                json.dumps(request.spec()).encode(),
                {
                    "Authorization": f"Bearer {request.account.token}",
                    "Content-Type": "application/json",
                    "Idempotency-Key": f"{request.account.tenant}-{request.name}",
                },
            )
            response = connection.getresponse()
            answer = response.read()
            assert response.status == 201, (response.status, answer[:500])
            took.append(time.monotonic() - sent)

    with ThreadPoolExecutor(connections) as threads:
        return [seconds for part in threads.map(work, range(connections)) for seconds in part]


def rows(platform: Platform, statement: str) -> list[tuple[Any, ...]]:
    """What the platform's database answers."""
    with psycopg2.connect(layout(platform.data).database_url) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


@dataclass(frozen=True)
class Waits:
    """Of one job, in seconds from its creation: until the first decision about it (it starts, or a reason why it
    waits), and until it was placed first."""

    tenant: str
    name: str
    decided_s: float
    placed_s: float


@dataclass(frozen=True)
class Run:
    """What a crowd's run took. submits: seconds each, a list per stream; cpu_ms: per job, by role."""

    total_s: float
    submitting_s: float
    submits: list[list[float]]
    cpu_ms: dict[str, float]
    waits: list[Waits]
    decisions: int
    commits: int


def run(crowd: Crowd, *streams: Sequence[Request], connections: int, within_s: float) -> Run:
    """Submit everything and wait until all of it is over: each job completed, none failed.

    Each stream has so many connections of its own, so that none of them waits for another's turn.
    """
    platform, count = crowd.platform, sum(map(len, streams))
    commits, before, began = rows(platform, COMMITS)[0][0], cpu_s(platform), time.monotonic()
    with ThreadPoolExecutor(len(streams)) as threads:
        submits = list(threads.map(lambda stream: submit_all(platform, stream, connections), streams))
    submitting_s = time.monotonic() - began
    wait_for(crowd.is_over, within_s=within_s, every_s=0.25, what=f"the end of {count} jobs")
    total_s, after = time.monotonic() - began, cpu_s(platform)
    committed = rows(platform, COMMITS)[0][0] - commits
    states = dict(rows(platform, "SELECT state, count(*) FROM jobs_job GROUP BY state"))
    assert states == {"COMPLETED": count}, states
    return Run(
        total_s,
        submitting_s,
        submits,
        {role: (after[role] - before[role]) / count * 1000 for role in SERVERS},
        [Waits(tenant, name, *map(float, waits)) for tenant, name, *waits in rows(platform, WAITS)],
        rows(platform, DECISIONS)[0][0],
        committed,
    )


def options(about: str | None) -> argparse.ArgumentParser:
    """The options of every bench of a crowd."""
    arguments = argparse.ArgumentParser(description=about)
    arguments.add_argument("--connections", type=int, default=8, help="per stream of submits")
    arguments.add_argument("--record", action="store_true", help="keep the figures")
    return arguments


def show(figures: Mapping[str, float]) -> None:
    """Print what is not recorded: of a trial, or of a machine that others use, too."""
    for name, value in figures.items():
        print(f"{name:32} {value:12.4g}")
