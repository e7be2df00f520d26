"""Watches in which order transactions lock rows: one order for all, or two of them can wait for each other forever."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection

ORDER = [
    "jobs_schedulinglease", "jobs_idempotentanswer", "jobs_blob", "jobs_learner", "jobs_progress", "jobs_checkpoint",
    "jobs_job", "jobs_attempt", "tenants_quota", "tenants_tenant",
]  # fmt: skip
"""The order of docs/adr/0012-one-lock-order.md."""
WAITED_FOR = r"\s*INSERT INTO \"?(jobs_idempotentanswer|jobs_blob)\b"
"""Two that insert the same key wait for each other."""
LOCKS = re.compile(WAITED_FOR + r'|\s*UPDATE "?(\w+)|.*?\bFROM "?(\w+).*\bFOR (?:NO KEY )?UPDATE', re.DOTALL)


@contextmanager
def one_lock_order() -> Iterator[set[str]]:
    """Fail at the end if a transaction here locked rows against ORDER; gives the tables that were locked."""
    transactions: list[tuple[object, list[str]]] = []
    seen: set[str] = set()
    wrong: list[str] = []

    def watch(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        found = LOCKS.match(sql)
        table = found and (found[1] or found[2] or found[3])
        if table in ORDER and connection.in_atomic_block:
            outermost = connection.atomic_blocks[0]
            if not transactions or transactions[-1][0] is not outermost:
                transactions.append((outermost, []))
            held = transactions[-1][1]
            seen.add(table)
            waits = "SKIP LOCKED" not in sql  # one that does not wait blocks no other
            if waits and table not in held and any(ORDER.index(one) > ORDER.index(table) for one in held):
                wrong.append(f"{table} after {held}: {sql[:200]}")
            held.append(table)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        yield seen
    if wrong:
        raise AssertionError("\n".join(wrong))
