"""How fast jobs are accepted: 10,000 submits over HTTP on a few connections, each durable before its response.

The whole platform runs meanwhile. The tenant's limit is 0, so nothing starts: this measures submitting, and what
thousands of waiting jobs cost while others are submitted. All submit the same small program (stored once, by its
content) under different names, each with an Idempotency-Key. At the end the database is queried for all of them: that
many different ids, each with exactly one event that it was submitted.
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg2

from bench.jobs_list import SPEC
from bench.record import percentile, record
from portal.settings.embedded import layout
from tests.platform import Client, Platform, running

Sent = tuple[int, str, float]
"""Status, the job's id and seconds of one submit."""


def submit_many(client: Client, first: int, count: int, spec: Mapping[str, Any] = SPEC) -> list[Sent]:
    """Submit jobs one after the other over one connection, with numbers from `first` on."""
    connection = http.client.HTTPConnection(urlsplit(client.url).netloc, timeout=60)
    headers = {"Authorization": f"Bearer {client.token}", "Content-Type": "application/json"}
    found = []
    for n in range(first, first + count):
        body = json.dumps({**spec, "name": f"run-{n}"}).encode()
        began = time.monotonic()
        path = f"/api/v1/tenants/{client.tenant}/jobs"
        connection.request("POST", path, body, headers | {"Idempotency-Key": f"submit-{n}"})
        response = connection.getresponse()
        answer = response.read()
        found.append((response.status, json.loads(answer).get("id", ""), time.monotonic() - began))
    connection.close()
    return found


def cpu_s(platform: Platform) -> dict[str, float]:
    """CPU-seconds so far by role, children that have ended included."""
    used: Counter[str] = Counter()
    for role, pid in platform.pids().items():
        top = psutil.Process(pid)
        # All others are children of `up`.
        for process in (top, *(top.children(recursive=True) if role != "up" else ())):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            used[role.partition("-")[0]] += sum(times[:4])
    return dict(used)


def assert_all_there(data: Path, sent: list[Sent]) -> None:
    """Every response named another job, each of which has exactly one event that it was submitted."""
    ids = {job for _, job, _ in sent}
    assert len(ids) == len(sent), f"{len(sent)} answers named {len(ids)} jobs"
    with psycopg2.connect(layout(data).database_url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT job_id, count(*) FROM jobs_jobevent WHERE code = 'SUBMITTED' GROUP BY job_id")
        events: Mapping[str, int] = dict(cursor.fetchall())
        cursor.execute("SELECT id FROM jobs_job")
        rows = {row[0] for row in cursor.fetchall()}
    assert ids == rows == set(events), (len(ids), len(rows), len(events))
    assert set(events.values()) == {1}, Counter(events.values())


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--submits", type=int, default=10_000)
    arguments.add_argument("--connections", type=int, default=4)
    chosen = arguments.parse_args()
    each = chosen.submits // chosen.connections
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "data") as platform:
        client, admin = platform.client(), platform.client("admin")
        closed = admin.call(
            "PUT", f"/tenants/{client.tenant}/quotas/cpu", {"limit": 0, "reason": "measuring submits"}
        )
        assert closed.status == 200, closed
        before, began = cpu_s(platform), time.monotonic()
        with ThreadPoolExecutor(chosen.connections) as threads:
            parts = threads.map(lambda n: submit_many(client, n * each, each), range(chosen.connections))
            sent = [answer for part in parts for answer in part]
        took_s = time.monotonic() - began
        after = cpu_s(platform)
        statuses = Counter(status for status, _, _ in sent)
        assert set(statuses) == {201}, statuses
        assert_all_there(Path(folder) / "data", sent)
    times = [seconds for _, _, seconds in sent]
    spent = {role: (after[role] - before.get(role, 0.0)) / len(sent) * 1000 for role in after}
    record(
        "submits",
        {
            "submits": len(sent),
            "connections": chosen.connections,
            "total_s": took_s,
            "submits_per_s": len(sent) / took_s,
            "submit_p50_ms": percentile(times, 0.5) * 1000,
            "submit_p99_ms": percentile(times, 0.99) * 1000,
            "web_cpu_ms_per_submit": spent["web"],
            "postgres_cpu_ms_per_submit": spent["postgres"],
            "workers_cpu_ms_per_submit": spent["worker"],
        },
        command=f"python -m bench.submits --submits {chosen.submits} --connections {chosen.connections}",
        targets={"total_s": "≤ 90"},
    )


if __name__ == "__main__":
    main()
