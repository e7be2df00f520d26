"""The shipped alerts and dashboard against a real Prometheus that scrapes a running platform."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.pods import spec
from tests.cluster.proxy import Proxy
from tests.platform import Platform, wait_for
from tools.kube import binaries
from tools.kube.prometheus import MONITORING, Prometheus

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

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
EVERYTHING = {"learners": 2, "gpus": 4}
"""All GPUs of both nodes."""


def test_every_expression_of_the_dashboard_and_the_alerts_finds_a_running_platform(
    platform: Platform, tmp_path: Path
) -> None:
    """One job has ended, one runs and reports, and one waits for GPUs."""
    built = binaries.build_prometheus()
    alice, scraped = platform.client("alice"), Proxy(platform.port)
    program = {"command": "python3 main.py"}
    quick = alice.submit(spec("quick", QUICK, **program))["id"]
    made = [alice.submit(spec("lasting", LASTING, **program))["id"]]
    alice.wait_state(quick, "COMPLETED", within_s=120)
    alice.wait_state(made[0], "PROCESSING", within_s=120)
    made.append(alice.submit(spec("waits", LASTING, **program, resources=EVERYTHING))["id"])
    target, token = f"127.0.0.1:{scraped.port}", platform.env["LUTHIER_METRICS_TOKEN"]
    with Prometheus(tmp_path, built, target=target, token=token) as prometheus:
        wait_for(lambda: prometheus.query("up == 1"), within_s=60, what="a scrape that succeeds")
        for title, shown in ((panel["title"], line) for panel in panels() for line in panel["targets"]):
            wait_for(
                lambda expr=shown["expr"]: prometheus.query(expr),  # type: ignore[misc]
                within_s=60,
                what=f"{title}: {shown['expr']}",
            )
        assert [series["metric"]["reason"] for series in prometheus.query("luthier_queue_reasons")] != [""]
        rules = wait_for(lambda: evaluated(prometheus), within_s=60, what="every rule's evaluation")
        assert {rule["name"]: rule.get("lastError", "") for rule in rules if rule["health"] != "ok"} == {}
        critical = [rule["name"] for rule in rules if rule["labels"]["severity"] == "critical"]
        assert {rule["name"] for rule in rules if rule["state"] != "inactive"}.isdisjoint(critical)
        lose_the_platform(scraped, prometheus)
    for job in made:
        alice.post(f"/jobs/{job}/cancel")
    for job in made:
        alice.wait_state(job, "CANCELED", within_s=120)


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    assert len(found) >= 15
    return found


def evaluated(prometheus: Prometheus) -> list[dict[str, Any]]:
    rules = prometheus.rules()
    done = rules and all(rule["health"] != "unknown" for rule in rules)
    return rules if done else []


def lose_the_platform(scraped: Proxy, prometheus: Prometheus) -> None:
    """No web process can be reached any more."""
    scraped.refuse()

    def is_noticed() -> bool:
        (rule,) = [rule for rule in prometheus.rules() if rule["name"] == "LuthierDown"]
        return bool(rule["state"] != "inactive")

    wait_for(is_noticed, within_s=60, what="the alert LuthierDown")
