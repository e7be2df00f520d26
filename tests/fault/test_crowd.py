"""More requests at once than the database takes: all wait their turn, none is refused, and /healthz responds."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.fault.faults import statuses_until
from tests.platform import running

CROWD = 250
"""More than PostgreSQL has connections."""


@pytest.mark.fault
@pytest.mark.timeout(300)
def test_more_than_the_database_takes_at_once_are_all_answered(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=1) as platform, ThreadPoolExecutor(CROWD) as threads:
        alice, all_here, answered = platform.client(), threading.Barrier(CROWD + 1), threading.Event()
        # They repeat until /healthz has responded, so that it is requested in the middle of a crowd.
        requests = [threads.submit(statuses_until, answered, all_here, alice) for _ in range(CROWD)]
        try:
            all_here.wait()
            with urlopen(f"{platform.url}/healthz", timeout=100) as answer:
                alive = answer.status
        finally:
            answered.set()
        statuses = Counter(status for one in requests for status in one.result())
    assert set(statuses) == {200}
    assert statuses[200] >= CROWD
    assert alive == 200
