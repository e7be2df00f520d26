"""Where the time of a request goes: to the database, and to Python's own work.

The request is handled in this process. SQL is the time until the database has answered. Processor times, of this thread
and of the server process that answers it, are what other programs on the machine do not change. That of the workers
that PostgreSQL takes for a parallel query is not in sql_cpu: they are processes of their own, and gone when it ends.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

RUNS = 5


def split(username: str, path: str, query: dict[str, str]) -> dict[str, float]:
    """Medians in ms: sql, sql_cpu (without parallel workers), python_cpu; and the number of statements. The caller has
    set up Django, and the database is on this machine."""
    from django.contrib.auth import get_user_model
    from django.db import connection
    from django.test import Client

    client = Client(SERVER_NAME="localhost")
    client.force_login(
        get_user_model().objects.get(username=username), backend="tenants.backends.PeopleBackend"
    )
    connection.ensure_connection()
    server = connection.connection.info.backend_pid
    took = {"sql": 0.0, "statements": 0.0}

    def timed(execute: Any, *of: Any) -> Any:
        began = time.perf_counter()
        try:
            return execute(*of)
        finally:
            took["sql"] += time.perf_counter() - began
            took["statements"] += 1

    found: list[tuple[float, ...]] = []
    for _ in range(RUNS + 1):
        took.update(sql=0.0, statements=0.0)
        began, before = time.thread_time(), _computed_s(server)
        with connection.execute_wrapper(timed):
            answer = client.get(path, query)
            b"".join(answer) if answer.streaming else answer.content
        python, there = time.thread_time() - began, _computed_s(server) - before
        found.append((took["sql"] * 1000, there * 1000, python * 1000, took["statements"]))
    sql, there, python, statements = (median(each) for each in zip(*found[1:], strict=True))
    return {"sql": sql, "sql_cpu": there, "python_cpu": python, "statements": statements}


def _computed_s(pid: int) -> float:
    """Seconds of processor time of a process of one thread, as the kernel's scheduler counts them."""
    nanoseconds, *_ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(nanoseconds) / 1e9
