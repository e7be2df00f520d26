"""Where the time of a request goes: to the database, and to Python's own work.

The request is handled in this process. SQL is the time until the database has answered; Python is processor time of
this thread, which other programs on the machine do not change.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

RUNS = 5


def split(username: str, path: str, query: dict[str, str]) -> dict[str, float]:
    """Medians in ms: sql, python_cpu; and the number of statements. The caller has set up Django."""
    from django.contrib.auth import get_user_model
    from django.db import connection
    from django.test import Client

    client = Client(SERVER_NAME="localhost")
    client.force_login(
        get_user_model().objects.get(username=username), backend="tenants.backends.PeopleBackend"
    )
    took = {"sql": 0.0, "statements": 0.0}

    def timed(execute: Any, *of: Any) -> Any:
        began = time.perf_counter()
        try:
            return execute(*of)
        finally:
            took["sql"] += time.perf_counter() - began
            took["statements"] += 1

    found: list[tuple[float, float, float]] = []
    for _ in range(RUNS + 1):
        took.update(sql=0.0, statements=0.0)
        began = time.thread_time()
        with connection.execute_wrapper(timed):
            answer = client.get(path, query)
            b"".join(answer) if answer.streaming else answer.content
        found.append((took["sql"] * 1000, (time.thread_time() - began) * 1000, took["statements"]))
    sql, python, statements = (median(each) for each in zip(*found[1:], strict=True))
    return {"sql": sql, "python_cpu": python, "statements": statements}
