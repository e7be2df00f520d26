"""How fast jobs are taken in: 10,000 submits over HTTP from several connections, each durable before its answer.

The tenant's limit is 0 meanwhile, so nothing starts: this measures the door, not the cluster.
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from bench.jobs_list import SPEC
from bench.record import percentile, record
from tests.platform import Client, running

BODY = json.dumps(SPEC).encode()


def submit_many(client: Client, first: int, count: int) -> list[tuple[int, float]]:
    """Status and seconds of each submit, over one connection."""
    connection = http.client.HTTPConnection(urlsplit(client.url).netloc, timeout=60)
    headers = {"Authorization": f"Bearer {client.token}", "Content-Type": "application/json"}
    found = []
    for n in range(first, first + count):
        began = time.monotonic()
        path = f"/api/v1/tenants/{client.tenant}/jobs"
        connection.request("POST", path, BODY, headers | {"Idempotency-Key": f"submit-{n}"})
        response = connection.getresponse()
        response.read()
        found.append((response.status, time.monotonic() - began))
    connection.close()
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--submits", type=int, default=10_000)
    arguments.add_argument("--connections", type=int, default=8)
    chosen = arguments.parse_args()
    each = chosen.submits // chosen.connections
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "data") as platform:
        client, admin = platform.client(), platform.client("admin")
        closed = admin.call(
            "PUT", f"/tenants/{client.tenant}/quotas/cpu", {"limit": 0, "reason": "measuring submits"}
        )
        assert closed.status == 200, closed
        began = time.monotonic()
        with ThreadPoolExecutor(chosen.connections) as threads:
            parts = threads.map(lambda n: submit_many(client, n * each, each), range(chosen.connections))
            answers = [answer for part in parts for answer in part]
        took_s = time.monotonic() - began
    statuses = Counter(status for status, _ in answers)
    assert set(statuses) == {201}, statuses
    times = [seconds for _, seconds in answers]
    record(
        "submits",
        {
            "total_s": took_s,
            "submits_per_s": len(answers) / took_s,
            "submit_p50_s": percentile(times, 0.5),
            "submit_p99_s": percentile(times, 0.99),
        },
        command=f"python -m bench.submits --submits {chosen.submits} --connections {chosen.connections}",
        aims={"total_s": 90.0},
    )


if __name__ == "__main__":
    main()
