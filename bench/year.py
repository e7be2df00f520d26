"""A year of use: every page and every GET of the API, the scheduling cycle's own reads, and how heartbeats update rows.

The database holds a million jobs, ten million events and 10^10 bytes of log (bench/year_seed.py) at scale 1. The whole
platform runs: eight real jobs train and report meanwhile, 200 real jobs wait behind them. Every route of the pages and
of the API that answers a GET is measured, by the addresses that the program itself knows; lists page after page, also
those deep in the list.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode

import psycopg2

from bench import year_seed, year_split
from bench.jobs_list import LISTS, PAGES, Take, by_page, by_rest, signed_in
from bench.record import RESULTS, percentile, record
from portal.settings.embedded import layout
from tests.platform import Client, Platform, running, wait_for

RUNNING, WAITING = 6, 200
PATTERN = {
    "apiVersion": "luthier/v1",
    "name": "pattern",
    "framework": "plain",
    "code": {
        "files": {
            "main.py": "import os, pathlib\nfrom learner_agent import training\n"
            "line = 'epoch 1 batch 17 loss=0.{:04d} acc=0.{:04d}'\n"
            "for n in range(256):\n    print(line.format(n, 9999 - n * 37 % 5000))\n"
            "for step in range(1, 21):\n    training.report(step, total=20, loss=1 / step)\n"
            "for step in (5, 10, 20):\n    with training.checkpoint(step) as folder:\n"
            "        (folder / 'model.bin').write_bytes(b'0' * 1000)\n"
            "(pathlib.Path(os.environ['RESULT_DIR']) / 'model.txt').write_text('model')\n"
            "training.finish()\n"
        }
    },
    "command": "python main.py",
}
LONG = PATTERN | {
    "name": "trains",
    "checkpoint": {"grace": "2s"},
    "code": {
        "files": {
            "main.py": "import itertools, time\nfrom learner_agent import training\n"
            "for step in itertools.count(1):\n    print('step', step, flush=True)\n"
            "    training.report(step, total=10**6, loss=1 / step)\n    time.sleep(1)\n"
        }
    },
}
WORDS = {"t": "vision-lab", "slug": "vision-lab", "username": "alice", "gpu_type": "cpu", "n": "1"}
"""What stands for the parameters of routes."""
VARIANTS = {
    "GET /tenants/{t}/usage": [
        {"by": by, "from": "{day_ago}", "to": "{now}"} for by in ("user", "gpu_type", "day")
    ]
    + [{"by": "user"}],
    "GET /tenants/{t}/queue": [{}, {"gpu_type": "cpu"}],
    "page /t/{slug}/usage": [{}, {"month": "{last_month}"}],
    "page /admin-console/audit": [{}, {"q": "person-17"}, {"q": "no such"}],
    "page /t/{slug}/audit": [{}, {"q": "person-17"}, {"q": "no such"}],
    "page /admin-console/users": [{}, {"page": "30"}, {"q": "person-17"}],
    "page /admin-console/quota-history": [{}, {"page": "200"}, {"tenant": "vision-lab"}, {"days": "365"}],
}
CYCLE_LIMIT_MS, LIST_LIMIT_MS, USAGE_LIMIT_MS = 20, 300, 200
TABLES = ("jobs_job", "jobs_joblease", "jobs_attempt", "jobs_learner", "jobs_heartbeat", "jobs_progress")


class Unmeasured(Exception):
    """The route does not answer a GET with 200."""


def addresses() -> dict[str, str]:
    """Every route of the pages and of the API, by its name here: "page /t/{slug}/jobs" or "GET /jobs"."""
    from portal.api.urls import urlpatterns as api
    from portal.pages.urls import urlpatterns as pages

    found = {}
    for kind, prefix, patterns in (("page", "/", pages), ("GET", "/", api)):
        for each in patterns:
            text = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", str(each.pattern).strip("^$"))
            text = text.replace("(?P{slug}[-a-zA-Z0-9_]+)", "{slug}").replace(
                "(?P{job_id}[0-9a-z]{12})", "{job_id}"
            )
            if "rest}" in text or "verb" in text or "logout" in text:
                continue
            tabs = re.search(r"\(\?P\{tab\}(.*)\)", text)
            for tab in tabs[1].split("|") if tabs else [""]:
                path = prefix + (text[: tabs.start()] + tab if tabs else text)
                found[f"{kind} {path}"] = path
    return found


def times_of(fetch: Callable[[], tuple[float, int]], runs: int, within_s: float) -> list[float]:
    """Seconds of each fetch, the first one not counted; fewer than runs if they take too long together."""
    _, status = fetch()
    if status != 200:
        raise Unmeasured(status)
    taken: list[float] = []
    while len(taken) < runs and (sum(taken) < within_s or len(taken) < 3):
        taken.append(fetch()[0])
    return taken


def one_page(client: Client, path: str, query: dict[str, str]) -> Callable[[], tuple[float, int]]:
    def fetch() -> tuple[float, int]:
        began = time.monotonic()
        status = client.call("GET", path, timeout_s=120, **query).status
        return time.monotonic() - began, status

    return fetch


def one_address(
    browser: urllib.request.OpenerDirector, address: str, query: dict[str, str]
) -> Callable[[], tuple[float, int]]:
    target = address + (f"?{urlencode(query)}" if query else "")

    def fetch() -> tuple[float, int]:
        began = time.monotonic()
        try:
            with browser.open(target, timeout=120) as response:
                response.read()
                status = response.status
        except HTTPError as error:
            status = error.code
        return time.monotonic() - began, status

    return fetch


@dataclass(frozen=True)
class Target:
    """One request of a route: who sends it, and where to. kind: page or GET."""

    kind: str
    user: str
    path: str
    query: dict[str, str]


def targets(words: dict[str, str]) -> dict[str, Target]:
    """Everything that may answer a GET, by its name here."""
    found = {}
    for name, path in addresses().items():
        for variant in VARIANTS.get(name, [{}]):
            query = {key: value.format(**words) for key, value in variant.items()}
            user = "admin" if "admin" in path or path in ("/users", "/quota-changes") else "dave"
            label = "?".join(
                filter(None, (name, "&".join(f"{key}={value}" for key, value in variant.items())))
            )
            found[label] = Target(name.partition(" ")[0], user, path.format_map(_Words(words)), query)
    return found


def measure_routes(platform: Platform, sought: dict[str, Target], runs: int) -> dict[str, list[float]]:
    """The times of everything that answers a GET, by its name."""
    browsers = {name: signed_in(platform, name) for name in ("dave", "admin")}
    clients = {name: platform.client(name) for name in ("dave", "admin")}
    found: dict[str, list[float]] = {}
    left_out = []
    for label, each in sought.items():
        one = (
            one_address(browsers[each.user], platform.url + each.path, each.query)
            if each.kind == "page"
            else one_page(clients[each.user], each.path, each.query)
        )
        try:
            found[label] = times_of(one, runs, within_s=8)
        except Unmeasured as why:
            left_out.append(f"{label} ({why})")
    print("  no GET:", ", ".join(left_out), flush=True)
    return found


class _Words(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "none"


def measure_lists(platform: Platform, runs: int) -> dict[str, list[float]]:
    """Lists of jobs, page after page, in every order and with every filter."""
    client, admin = platform.client(), platform.client("admin")
    browser = signed_in(platform, "alice")
    address = f"{platform.url}/t/{client.tenant}/jobs"
    lists: dict[str, Take] = {f"jobs {name}": by_rest(client, query) for name, query in LISTS.items()}
    lists |= {f"jobs of all, {name}": by_rest(admin, query) for name, query in LISTS.items()}
    lists |= {f"jobs page, {name}": by_page(browser, address, query) for name, query in PAGES.items()}
    found = {}
    for name, take in lists.items():
        mark = ""

        def fetch(take: Take = take) -> tuple[float, int]:
            nonlocal mark
            taken, mark = take(mark)
            return taken, 200

        found[name] = times_of(fetch, runs, within_s=8)
    return found


WARM, FIRST, TICK = "cycle's reads", "cycle's first reads", "tick's reads"


def measure_cycle(
    runs: int, *, waiting: int = WAITING
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """What the ticker reads at every tick, and what a pass of the cycle reads, in this process, with the same code: one
    that keeps the waiting jobs since the pass before it, as all do but the first one, and the first one of a process,
    which reads all of them. Seconds, and seconds of this thread's processor time. waiting: at least half of these wait.
    """
    from jobs.lifecycle import cycle, forecasting, periodic
    from jobs.selectors.kept_rows import KeptRows
    from jobs.selectors.nodes import scheduler_nodes
    from jobs.selectors.snapshot import needs_plan

    def of_tick() -> None:
        periodic.due("cycle")
        cycle.has_new()

    def of_pass(kept: KeptRows) -> None:
        cycle.known_nodes()
        assert needs_plan()
        seen = cycle.read_rows(nodes, kept, {})
        assert len(seen.waiting) >= waiting / 2, len(seen.waiting)
        assert seen.running
        forecasting.lacks_estimates()

    nodes, kept = scheduler_nodes(), KeptRows()
    reads = {WARM: lambda: of_pass(kept), FIRST: lambda: of_pass(KeptRows()), TICK: of_tick}
    took: dict[str, list[float]] = {}
    computed: dict[str, list[float]] = {}
    for name, read in reads.items():
        read()
        for _ in range(runs):
            began, before = time.monotonic(), time.thread_time()
            read()
            took.setdefault(name, []).append(time.monotonic() - began)
            computed.setdefault(name, []).append(time.thread_time() - before)
    return took, computed


def updates(database_url: str) -> dict[str, tuple[int, int]]:
    """Rows updated so far by table, and how many of them in place (HOT)."""
    with psycopg2.connect(database_url) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = ANY(%s)",
            [[*TABLES]],
        )
        return {name: (all_, hot) for name, all_, hot in cursor.fetchall()}


def hot_shares(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> dict[str, float]:
    """Percent of the updates between two readings that were HOT: by table, and of all together."""
    grown = {name: (after[name][0] - all_, after[name][1] - hot) for name, (all_, hot) in before.items()}
    shares = {f"hot_{name}_percent": 100 * hot / all_ for name, (all_, hot) in grown.items() if all_}
    total = [sum(each) for each in zip(*grown.values(), strict=True)]
    return {"updates": total[0], "hot_percent": 100 * total[1] / max(1, total[0])} | shares


def prepare(platform: Platform, jobs: int, days: int) -> str:
    """Run the pattern job and copy it, unless the folder has its year already; then what runs and what waits.

    Returns the id of a copied job."""
    database_url, client, admin = (
        layout(platform.data).database_url,
        platform.client(),
        platform.client("admin"),
    )
    limit = {"limit": RUNNING, "reason": "a year of use"}
    assert admin.call("PUT", f"/tenants/{client.tenant}/quotas/cpu", limit).status == 200
    if not year_seed.is_seeded(database_url):
        pattern = client.submit(PATTERN)["id"]
        client.wait_state(pattern, "COMPLETED", within_s=120)

        def merged() -> bool:
            return year_seed.is_merged(database_url, pattern)

        wait_for(merged, within_s=180, every_s=1, what="its log merged, as those of a year are")
        year_seed.seed(database_url, pattern, jobs, days)
        for _ in range(RUNNING + WAITING):
            client.submit(LONG)

    def all_run() -> bool:
        return len(client.get("/jobs", state="PROCESSING")["items"]) >= RUNNING

    wait_for(all_run, within_s=240, every_s=1, what=f"{RUNNING} running jobs")
    # A copy of whose every kind there is something: points, a checkpoint, a result.
    return f"{4096 + jobs // 2 // 100 * 100:012x}"


Table = dict[str, dict[str, float]]


def measure(platform: Platform, jobs: int, runs: int, days: int) -> tuple[dict[str, float], Table]:
    """Figures, and for each route p50 and p99, and where its time goes (bench.year_split), in ms."""
    database_url = layout(platform.data).database_url
    os.environ.update(LUTHIER_DATA=str(platform.data), DJANGO_SETTINGS_MODULE="portal.settings.base")
    import django

    django.setup()
    job = prepare(platform, jobs, days)
    now = datetime.now(UTC)
    words = WORDS | {
        "job_id": job,
        "now": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "day_ago": (now - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "last_month": f"{now.replace(day=1) - timedelta(days=1):%Y-%m}",
        "path": "model.txt",
    }
    before, began = updates(database_url), time.monotonic()
    sought = targets(words)
    cycle, computed = measure_cycle(runs)
    taken = cycle | measure_routes(platform, sought, runs) | measure_lists(platform, runs)
    parts = {
        label: year_split.split(each.user, ("/api/v1" if each.kind == "GET" else "") + each.path, each.query)
        for label, each in sought.items()
        if label in taken
    }
    time.sleep(max(0.0, 90 - (time.monotonic() - began)))  # so that there are enough heartbeats to count
    p99 = {name: percentile(each, 0.99) * 1000 for name, each in taken.items()}
    p50 = {name: percentile(each, 0.5) * 1000 for name, each in taken.items()}
    routes = [name for name in p99 if "reads" not in name]
    daily = [name for name in routes if "usage" in name and "day_ago" in name]
    pages = [name for name in routes if "page" in name.split(",")[0]]
    figures = {
        "routes": len(routes),
        "worst_page_p99_ms": max(p99[name] for name in pages),
        "worst_list_p99_ms": max(p99[name] for name in routes if name not in pages),
        "help_page_p99_ms": p99["page /help"],  # reads no history: what the machine's load does to any page
        "median_route_p99_ms": percentile([p99[name] for name in routes], 0.5),
        "routes_over_300_ms": sum(p99[name] > LIST_LIMIT_MS for name in routes),
        "usage_last_day_p99_ms": max(p99[name] for name in daily),
        "cycle_reads_p50_ms": p50[WARM],
        "cycle_reads_p99_ms": p99[WARM],
        "cycle_reads_cpu_ms": percentile(computed[WARM], 0.5) * 1000,
        "cycle_first_reads_p50_ms": p50[FIRST],
        "cycle_first_reads_p99_ms": p99[FIRST],
        "cycle_first_reads_cpu_ms": percentile(computed[FIRST], 0.5) * 1000,
        "tick_reads_p99_ms": p99[TICK],
        **hot_shares(before, updates(database_url)),
        "worst_python_cpu_ms": max(each["python_cpu"] for each in parts.values()),
        "worst_sql_ms": max(each["sql"] for each in parts.values()),
        "worst_sql_cpu_ms": max(each["sql_cpu"] for each in parts.values()),
        "load": os.getloadavg()[1],
    }
    table = {name: {"p50": p50[name], "p99": p99[name]} | parts.get(name, {}) for name in p99}
    show(table)
    return figures, table


def show(table: Table) -> None:
    """Print the routes, the slowest first."""
    print(f"{'p50':>8} {'p99':>8} {'sql':>8} {'sql cpu':>8} {'python':>8}  ms")
    for name, row in sorted(table.items(), key=lambda each: -each[1]["p99"]):
        columns = ("p50", "p99", "sql", "sql_cpu", "python_cpu")
        cells = (f"{row[key]:8.1f}" if key in row else " " * 8 for key in columns)
        print(*cells, "", name)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--scale", type=float, default=1.0, help="1: a million jobs")
    arguments.add_argument(
        "--days",
        type=int,
        default=365,
        help="over which they are spread; with a scale of 0.1, 36 days have months as full as a whole year's",
    )
    arguments.add_argument("--runs", type=int, default=30, help="requests per address")
    arguments.add_argument(
        "--data", type=Path, help="keep the seeded installation here, or use what is there"
    )
    arguments.add_argument("--as", dest="label", choices=("before", "after"), default="after")
    chosen = arguments.parse_args()
    jobs = round(year_seed.JOBS * chosen.scale)
    folder = chosen.data or Path(tempfile.mkdtemp())
    try:
        with running(folder / "data", nodes=f"node-a:cpu:{RUNNING}") as platform:
            figures, table = measure(platform, jobs, chosen.runs, chosen.days)
            sizes = year_seed.sizes(layout(platform.data).database_url)
            figures = {"days": chosen.days} | sizes | figures
    finally:
        if not chosen.data:
            shutil.rmtree(folder, ignore_errors=True)
    write(chosen, figures, table)


def write(chosen: argparse.Namespace, figures: dict[str, float], table: Table) -> None:
    """Beside the figures of the other label, so that one file shows both."""
    kept = RESULTS / "year.json"
    old = json.loads(kept.read_text()) if kept.exists() else {}
    both = {
        key: value for key, value in old.get("figures", {}).items() if not key.startswith(f"{chosen.label} ")
    } | {f"{chosen.label} {key}": value for key, value in figures.items()}
    routes = {name: ms for name, ms in old.get("p99_ms", {}).items() if name != chosen.label}
    p99 = {name: round(row["p99"], 1) for name, row in table.items()}
    parts = {
        name: {key: round(row[key], 1) for key in ("p50", "sql", "sql_cpu", "python_cpu")}
        for name, row in table.items()
        if "sql" in row
    }
    record(
        "year",
        dict(sorted(both.items(), key=lambda each: each[0].startswith("before"))),
        command=f"python -m bench.year --scale {chosen.scale:g} --days {chosen.days} --runs {chosen.runs}",
        targets={
            "after worst_page_p99_ms": f"≤ {LIST_LIMIT_MS}",
            "after worst_list_p99_ms": f"≤ {LIST_LIMIT_MS}",
            "after usage_last_day_p99_ms": f"≤ {USAGE_LIMIT_MS}",
            "after cycle_reads_p99_ms": f"≤ {CYCLE_LIMIT_MS}",
            "after hot_percent": "≥ 90",
        },
        baseline="before: the same rows and requests at the commit that added this benchmark",
        details={"p99_ms": routes | {chosen.label: p99}, "parts_ms": parts},
    )


if __name__ == "__main__":
    main()
