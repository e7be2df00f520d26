"""A worker lets its threads take turns as the web server does, and collects nothing that stays."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest
from celery.signals import worker_ready

from portal import celery


@pytest.fixture
def as_before() -> Iterator[None]:
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("as_before")
def test_a_worker_that_is_ready_lets_its_threads_take_turns_soon() -> None:
    worker_ready.send(sender=celery.app)
    assert sys.getswitchinterval() == pytest.approx(0.001)
    assert gc.get_freeze_count() > 10_000
