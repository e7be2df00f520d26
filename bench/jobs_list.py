"""How long the list of jobs takes over HTTP when a tenant has 100,000: plain, filtered, searched, by pages."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg2

from bench.record import percentile, record
from portal.settings.embedded import layout
from tests.platform import Client, running

COPY = """
INSERT INTO jobs_job SELECT (jsonb_populate_record(job, jsonb_build_object(
  'id', lpad(to_hex(4096 + n), 12, '0'), 'name', 'run-' || (n %% 977),
  'tags', CASE WHEN n %% 50 = 0 THEN ARRAY['baseline'] ELSE ARRAY[]::text[] END,
  'state', (ARRAY['COMPLETED', 'FAILED', 'CANCELED'])[1 + n %% 3]))).*
FROM jobs_job AS job, generate_series(1, %(count)s) AS n WHERE job.id = %(like)s;
INSERT INTO jobs_progress SELECT (jsonb_populate_record(progress, jsonb_build_object('job_id', job.id))).*
FROM jobs_progress AS progress, jobs_job AS job WHERE progress.job_id = %(like)s AND job.id <> %(like)s;
ANALYZE;
"""
SPEC = {
    "apiVersion": "luthier/v1",
    "name": "pattern",
    "framework": "plain",
    "code": {"files": {"main.py": "print('done')\n"}},
    "command": "python main.py",
}
LISTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "by_state": {"state": "FAILED"},
    "by_tag": {"tag": "baseline"},
    "by_name": {"order": "name"},
    "search": {"q": "run-97"},
}


def fill(data: Path, like: str, count: int) -> None:
    """Copy one finished job so many times, straight in the database."""
    with psycopg2.connect(layout(data).database_url) as connection, connection.cursor() as cursor:
        cursor.execute(COPY, {"count": count, "like": like})


def took_s(client: Client, **query: Any) -> tuple[float, str | None]:
    began = time.monotonic()
    answer = client.call("GET", "/jobs", page_size=50, **query)
    assert answer.status == 200, answer
    return time.monotonic() - began, answer.body["next"]


def pages(client: Client, runs: int) -> list[float]:
    """One page after the other: a page deep in the list costs no more than the first."""
    times, cursor = [], None
    for _ in range(runs):
        taken, cursor = took_s(client, **({"cursor": cursor} if cursor else {}))
        times.append(taken)
    return times


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--jobs", type=int, default=100_000)
    arguments.add_argument("--runs", type=int, default=100)
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "data") as platform:
        client = platform.client()
        job = client.submit(SPEC)["id"]
        client.wait_state(job, "COMPLETED", within_s=120)
        fill(Path(folder) / "data", job, chosen.jobs)
        times = {
            name: [took_s(client, **query)[0] for _ in range(chosen.runs)] for name, query in LISTS.items()
        }
        times["next_pages"] = pages(client, chosen.runs)
    figures = {f"{name}_p50_s": percentile(each, 0.5) for name, each in times.items()}
    figures |= {f"{name}_p99_s": percentile(each, 0.99) for name, each in times.items()}
    record(
        "jobs_list",
        figures,
        command=f"python -m bench.jobs_list --jobs {chosen.jobs} --runs {chosen.runs}",
        aims={f"{name}_p99_s": 0.3 for name in times},
    )


if __name__ == "__main__":
    main()
