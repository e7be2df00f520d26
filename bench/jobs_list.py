"""How long a list of jobs takes over HTTP when a tenant has 100,000: by REST and as a page, in every order, searched.

The jobs are copies of one that really ran, of one researcher, so that every list is as long as it can be. `rare` and
`missing` are the searches that cost most: they have to look at every job. Each list's pages are read one after the
other and begun again at its end, so the times are of pages deep in the list, too.
"""

from __future__ import annotations

import argparse
import http.cookiejar
import re
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg2

from bench.record import percentile, record
from portal.settings.embedded import layout
from tests.platform import Client, Platform, running

COPY = """
SET LOCAL session_replication_role = replica;  -- copies of a sound row need no check each
INSERT INTO jobs_job SELECT (jsonb_populate_record(job, jsonb_build_object(
  'id', lpad(to_hex(4096 + n), 12, '0'), 'name', CASE WHEN n = 7 THEN 'needle' ELSE 'run-' || (n %% 977) END,
  'tags', CASE WHEN n %% 50 = 0 THEN ARRAY['baseline'] ELSE ARRAY[]::text[] END,
  'priority_rank', n %% 4,
  'state', (ARRAY['COMPLETED', 'FAILED', 'CANCELED'])[1 + n %% 3]))).*
FROM jobs_job AS job, generate_series(1, %(count)s) AS n WHERE job.id = %(like)s;
INSERT INTO jobs_progress SELECT (jsonb_populate_record(progress, jsonb_build_object('job_id', job.id))).*
FROM jobs_progress AS progress, jobs_job AS job, generate_series(1, %(count)s) AS n
WHERE progress.job_id = %(like)s AND job.id = lpad(to_hex(4096 + n), 12, '0');
"""
SETTLE = "VACUUM (ANALYZE) jobs_job, jobs_progress"
"""What autovacuum has done where 100,000 jobs were submitted one by one."""
SPEC = {
    "apiVersion": "luthier/v1",
    "name": "pattern",
    "framework": "plain",
    "code": {"files": {"main.py": "print('done')\n"}},
    "command": "python main.py",
}
LISTS: dict[str, dict[str, Any]] = {
    "newest": {},
    "oldest": {"order": "oldest"},
    "by_name": {"order": "name"},
    "by_state": {"order": "state"},
    "by_priority": {"order": "priority"},
    "failed_by_name": {"state": "FAILED", "order": "name"},
    "of_tenant": {"tenant": "vision-lab"},
    "of_owner": {"owner": "alice"},
    "of_state": {"state": "FAILED"},
    "of_tag": {"tag": "baseline"},
    "of_gpu_type": {"gpu_type": "a100"},
    "search": {"q": "run-97"},
    "rare": {"q": "needle"},
    "missing": {"q": "no such job"},
}
PAGES: dict[str, dict[str, str]] = {
    "page": {},
    "page_of_state": {"state": "FAILED"},
    "page_search": {"q": "run-97"},
    "page_rare": {"q": "needle"},
}
Take = Callable[[str], tuple[float, str]]
"""One page behind a mark ("": the first): its seconds, and the mark of the next one ("": none)."""


def fill(data: Path, like: str, count: int) -> None:
    """Copy one finished job that many times, directly in the database."""
    connection = psycopg2.connect(layout(data).database_url)
    with connection, connection.cursor() as cursor:
        cursor.execute(COPY, {"count": count, "like": like})
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(SETTLE)
    connection.close()


def by_rest(client: Client, query: dict[str, Any]) -> Take:
    def take(mark: str) -> tuple[float, str]:
        began = time.monotonic()
        answer = client.call("GET", "/jobs", page_size=50, **query | ({"cursor": mark} if mark else {}))
        taken = time.monotonic() - began
        assert answer.status == 200, answer
        return taken, answer.body["next"] or ""

    return take


def by_page(browser: urllib.request.OpenerDirector, address: str, query: dict[str, str]) -> Take:
    def take(mark: str) -> tuple[float, str]:
        asked = urlencode(query | ({"before": mark} if mark else {}))
        began = time.monotonic()
        with browser.open(f"{address}?{asked}", timeout=60) as response:
            text = response.read().decode()
        taken = time.monotonic() - began
        found = re.search(r"before=([0-9a-z]{12})", text)
        return taken, found[1] if found else ""

    return take


def signed_in(platform: Platform, name: str) -> urllib.request.OpenerDirector:
    """A browser's session, as the log-in page gives it."""
    jar = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    browser.open(f"{platform.url}/login", timeout=60).read()
    csrf = next(str(cookie.value) for cookie in jar if "csrf" in cookie.name)
    form = {
        "username": name,
        "password": platform.users[name]["password"],
        "csrfmiddlewaretoken": csrf,
    }
    with browser.open(f"{platform.url}/login", urlencode(form).encode(), timeout=60) as response:
        assert not response.url.endswith("/login"), "the log-in was refused"
    return browser


def times(take: Take, runs: int) -> list[float]:
    """Page after page, and after the last one from the first again."""
    found, mark = [], ""
    for _ in range(runs):
        taken, mark = take(mark)
        found.append(taken)
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--jobs", type=int, default=100_000)
    arguments.add_argument("--runs", type=int, default=100, help="pages per list")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "data") as platform:
        client, admin = platform.client(), platform.client("admin")
        job = client.submit(SPEC)["id"]
        client.wait_state(job, "COMPLETED", within_s=120)
        fill(Path(folder) / "data", job, chosen.jobs)
        browser = signed_in(platform, "alice")
        address = f"{platform.url}/t/{client.tenant}/jobs"
        lists = {name: by_rest(client, query) for name, query in LISTS.items()}
        lists |= {
            f"admin_{name}": by_rest(admin, LISTS[name])
            for name in ("newest", "by_name", "rare", "of_gpu_type")
        }
        lists |= {name: by_page(browser, address, query) for name, query in PAGES.items()}
        for take in lists.values():
            take("")  # the first request of a new server does not count
        taken = {name: times(take, chosen.runs) for name, take in lists.items()}
    figures: dict[str, float] = {"jobs": chosen.jobs}
    figures["worst_p99_ms"] = max(percentile(each, 0.99) for each in taken.values()) * 1000
    for name, each in taken.items():
        figures[f"{name}_p50_ms"] = percentile(each, 0.5) * 1000
        figures[f"{name}_p99_ms"] = percentile(each, 0.99) * 1000
    record(
        "jobs_list",
        figures,
        command=f"python -m bench.jobs_list --jobs {chosen.jobs} --runs {chosen.runs}",
        targets={"worst_p99_ms": "≤ 300"},
    )


if __name__ == "__main__":
    main()
