"""A crowd before the web server: all wait their turn, nobody is refused, and whoever watches over it is answered."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.platform import running

CROWD = 250
"""More than PostgreSQL has connections."""


@pytest.mark.fault
@pytest.mark.timeout(300)
def test_more_than_the_database_takes_at_once_are_all_answered(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=1) as platform, ThreadPoolExecutor(CROWD) as threads:
        alice = platform.client()
        asked = [threads.submit(alice.call, "GET", "/jobs", timeout_s=100) for _ in range(CROWD)]
        time.sleep(0.3)
        with urlopen(f"{platform.url}/healthz", timeout=20) as answer:
            alive = answer.status
        waiting = sum(not one.done() for one in asked)
        statuses = Counter(one.result().status for one in asked)
    assert statuses == {200: CROWD}
    assert alive == 200
    assert waiting, "nobody waited: that was no crowd"
