"""A driver is its own module, one line in the registry, and its variables in the settings: nothing else knows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pytest_django import Settings

from gpu_scheduler.clusters import registry
from gpu_scheduler.clusters.base import CAUSES, Capabilities, EndReason
from jobs import clusters
from portal.celery import require_cluster_settings
from portal.settings import values
from portal.settings.env import read_environment
from tests.gpu_scheduler.clusters.slow import SlowCluster

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("portal", "jobs", "tenants", "gpu_scheduler", "learner_agent")
NAMES = "|".join(("local", "memory", "kubernetes"))
COMPARED = re.compile(
    rf"""[=!]=\s*["\']({NAMES})["\']|["\']({NAMES})["\']\s*[=!]=|case ["\']({NAMES})["\']:"""
)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.DRIVERS, SlowCluster.name, lambda: SlowCluster)


def test_one_line_in_the_registry_makes_a_driver_usable(
    registered: None, settings: Settings, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("LUTHIER_CLUSTER", "slow")
    settings.LUTHIER_CLUSTER = read_environment().luthier_cluster
    clusters.use(None)
    request.addfinalizer(lambda: clusters.use(None))

    assert isinstance(clusters.current(), SlowCluster)
    assert clusters.named("slow") is clusters.current()
    assert clusters.capabilities() == SlowCluster.capabilities
    assert not values.needs_node_daemon("slow")


def test_a_driver_that_is_not_registered_is_named_with_those_that_are() -> None:
    with pytest.raises(
        ValueError, match="no cluster driver 'slow' in this version; use kubernetes, local or memory"
    ):
        values.cluster("slow")


def test_a_driver_without_its_settings_names_the_variable() -> None:
    with pytest.raises(registry.ClusterMisconfigured, match="LUTHIER_NODE_SOCKET is not set"):
        registry.connect("local", {})


@pytest.mark.parametrize("name", registry.DRIVERS)
def test_every_driver_is_known_by_its_own_name_and_says_what_it_can_do(name: str) -> None:
    driver = registry.driver(name)
    assert driver.name == name
    assert isinstance(driver.capabilities, Capabilities)


def test_no_code_compares_the_name_of_a_driver() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if COMPARED.search(line)
    ]
    assert found == []


def test_the_cause_of_every_end_is_known() -> None:
    assert CAUSES.keys() == set(EndReason)


def test_a_worker_without_its_clusters_settings_ends_with_what_to_change(
    settings: Settings, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.LUTHIER_CLUSTER, settings.LUTHIER_NODE_SOCKET = "local", None
    clusters.use(None)
    request.addfinalizer(lambda: clusters.use(None))
    with pytest.raises(SystemExit) as ended:
        require_cluster_settings()
    assert ended.value.code == 78
    assert "LUTHIER_NODE_SOCKET is not set" in capsys.readouterr().err
