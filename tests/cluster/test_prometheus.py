"""The shipped alerts and dashboard against a real Prometheus that scrapes a running platform."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fault.test_ends import spec
from tests.platform import Platform, running, wait_for
from tools.kube import binaries
from tools.kube.prometheus import MONITORING, Prometheus

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TOKEN = "prometheus-" + "x" * 50
QUICK = "print('done')"
LASTING = """\
import time
from learner_agent import training
step = 0
while not training.halt_requested():
    step += 1
    training.report(step, loss=1.0)
    print("step", step, flush=True)
    time.sleep(0.1)
"""


def test_every_expression_of_the_dashboard_and_the_alerts_finds_a_running_platform(tmp_path: Path) -> None:
    """One job has ended, one runs and reports, and one waits for the only slot."""
    built = binaries.build_prometheus()
    with running(tmp_path / "data", workers=1, nodes="node-a:cpu:1", LUTHIER_METRICS_TOKEN=TOKEN) as platform:
        alice = platform.client()
        alice.wait_state(alice.submit(spec(QUICK))["id"], "COMPLETED", within_s=120)
        alice.wait_state(alice.submit(spec(LASTING))["id"], "PROCESSING", within_s=120)
        alice.submit(spec(LASTING))
        with Prometheus(
            tmp_path, built, target=platform.url.removeprefix("http://"), token=TOKEN
        ) as prometheus:
            wait_for(lambda: prometheus.query("up == 1"), within_s=60, what="a scrape that succeeds")
            for panel in panels():
                (target,) = panel["targets"]
                wait_for(
                    lambda expr=target["expr"]: prometheus.query(expr),  # type: ignore[misc]
                    within_s=60,
                    what=f"{panel['title']}: {target['expr']}",
                )
            assert [series["metric"]["reason"] for series in prometheus.query("luthier_queue_reasons")] != [
                ""
            ]
            rules = wait_for(lambda: evaluated(prometheus), within_s=60, what="every rule's evaluation")
            assert {rule["name"]: rule.get("lastError", "") for rule in rules if rule["health"] != "ok"} == {}
            critical = [rule["name"] for rule in rules if rule["labels"]["severity"] == "critical"]
            assert {rule["name"] for rule in rules if rule["state"] != "inactive"}.isdisjoint(critical)
            lose_the_platform(platform, prometheus)


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    assert len(found) >= 15
    return found


def evaluated(prometheus: Prometheus) -> list[dict[str, Any]]:
    rules = prometheus.rules()
    done = rules and all(rule["health"] != "unknown" for rule in rules)
    return rules if done else []


def lose_the_platform(platform: Platform, prometheus: Prometheus) -> None:
    platform.stop()

    def is_noticed() -> bool:
        (rule,) = [rule for rule in prometheus.rules() if rule["name"] == "LuthierDown"]
        return bool(rule["state"] != "inactive")

    wait_for(is_noticed, within_s=60, what="the alert LuthierDown")
