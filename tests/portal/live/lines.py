"""Lines that a learner prints, stored and made known, for the tests of sockets."""

from __future__ import annotations

from asgiref.sync import sync_to_async

from jobs import pubsub
from jobs.models import Job
from tests.jobs.test_log_lines import store

store_async = sync_to_async(store)


async def print_lines(job: Job, first: int, last: int, *, notify: bool = True) -> None:
    await store_async(job, [b"".join(b"line %d\n" % n for n in range(first, last + 1))])
    if notify:
        pubsub.logs_grew(job.pk, attempt=1, rank=0, upto=last)


def logs_of(job: Job) -> str:
    return f"job:{job.pk}:logs:1:0"
