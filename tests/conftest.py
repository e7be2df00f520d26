"""The suite's own PostgreSQL and Valkey: started once, on private sockets, shared by all processes of one run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from hypothesis import HealthCheck, settings

from portal import budgets, strangers
from tests import shortcuts
from tests.servers import Servers

# A busy machine is no failure: what a property may cost is bounded by its examples, not by a clock. The examples are
# the same in every run, so that a change is judged by what it changes; `make test-long` looks for new ones.
settings.register_profile(
    "suite",
    deadline=None,
    derandomize="LUTHIER_LONG" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")

STARTED = pytest.StashKey[Servers]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the servers in the process that was called; pytest-xdist's workers inherit their addresses."""
    if (
        hasattr(config, "workerinput")
        or os.environ.get("LUTHIER_TEST_SERVERS") == "running"
        or config.option.collectonly
    ):
        return
    servers = Servers(Path(os.environ["LUTHIER_TEST_DATA"]))
    servers.start()
    os.environ["LUTHIER_TEST_SERVERS"] = "running"
    # Only now there is a password.
    os.environ["REDIS_URL"] = django_settings.REDIS_URL = servers.layout.redis_url
    config.stash[STARTED] = servers


def pytest_unconfigure(config: pytest.Config) -> None:
    servers = config.stash.get(STARTED, None)
    if servers is not None:
        os.environ.pop("LUTHIER_TEST_SERVERS", None)
        servers.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The file that takes by far the longest goes first: with two at a time, no process ends alone with it."""
    items.sort(key=lambda item: item.path.name != "test_machine.py")
    for name in ("fault", "cluster", "browser"):
        for path in {item.path for item in items if item.get_closest_marker(name)}:
            if f"mark.{name}" not in path.read_text():
                raise pytest.UsageError(f"{path} has {name} tests, which `make test` finds by `mark.{name}`")


@pytest.fixture(scope="session", autouse=True)
def _shortcuts() -> None:
    shortcuts.install()


@pytest.fixture(autouse=True)
def _fresh_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test's refusals are left out of the log for those of another."""
    monkeypatch.setattr(strangers, "_lines", strangers.Lines())


@pytest.fixture
def fresh_budgets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests with another shared cache: the process keeps the one that it counted in first."""
    monkeypatch.setattr(budgets, "_away_until", 0.0)
    budgets._shared.cache_clear()
    yield
    budgets._shared.cache_clear()
