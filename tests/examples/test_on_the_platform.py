"""The examples on a whole platform: halted and resumed by REST, they end as if nothing had happened. Long."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from examples import catalog
from examples.data.fetch import fetch
from tests.examples.programs import BUILT, share
from tests.platform import Client, Platform

LONG = bool(os.environ.get("LUTHIER_LONG"))
pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    data = tmp_path_factory.mktemp("examples")
    fetch("mnist", BUILT / "datasets")
    share(data)
    with Platform(data, nodes="node-a:cpu:4,node-b:cpu:4") as platform:
        yield platform.client("alice")


def spec_of(name: str, command: str | None = None, **env: str) -> dict[str, Any]:
    spec = catalog.load(name)
    spec["command"] = command or spec["command"]
    spec["env"] = spec.get("env", {}) | env
    return spec


def run_with_halts(client: Client, spec: dict[str, Any], *halt_at: int) -> dict[str, Any]:
    """Submit, halt at each of the steps and resume, and return the job when it has completed.

    Many seconds of work must stay after the last halt: one that a slow machine delays must find it running.
    """
    job = client.submit(spec)["id"]
    for step in halt_at:
        client.wait_step(job, step)
        client.post(f"/jobs/{job}/halt")
        halted = client.wait_state(job, "HALTED", within_s=60)
        assert halted["reason"]["numbers"]["steps_lost"] == 0
        assert halted["checkpoint"]["step"] >= step
        client.post(f"/jobs/{job}/resume")
    done = client.wait_state(job, "COMPLETED", within_s=300)
    assert done["attempt"] == 1 + len(halt_at), client.story(job)
    return done


def result(client: Client, job: str, path: str) -> Any:
    answer = client.call("GET", f"/jobs/{job}/results/{path}")
    assert answer.status == 200, answer
    return answer.body


def both(client: Client, spec: dict[str, Any], *halt_at: int) -> tuple[str, str]:
    """Run a job straight and a twin with halts, at the same time; return their ids."""
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(run_with_halts, client, spec, *steps) for steps in ((), halt_at)]
        return jobs[0].result()["id"], jobs[1].result()["id"]


def test_digits_halted_by_rest_end_in_the_same_bits(alice: Client) -> None:
    halts = range(20, 420, 40) if LONG else (30, 120)
    spec = spec_of("digits-sklearn", f"python train.py --steps {650 if LONG else 400} --step-s 0.05")
    straight, halted = both(alice, spec, *halts)
    assert result(alice, halted, "score.json") == result(alice, straight, "score.json")
    attempts = range(2, 2 + len(halts))
    assert all(b"resumed at step" in alice.raw_log(halted, attempt=attempt) for attempt in attempts)
    series = alice.get(f"/jobs/{halted}/metrics", names="loss,accuracy")
    assert "loss" in str(series)


def test_gang_halted_by_rest_ends_in_the_same_bits_on_both_learners(alice: Client) -> None:
    straight, halted = both(alice, spec_of("gang-numpy", STEP_S="0.05"), 100)
    for path in ("score-0.json", "score-1.json"):
        scores = [find_result(alice, job, path) for job in (straight, halted)]
        assert scores[0] == scores[1]


def find_result(client: Client, job: str, name: str) -> Any:
    listed = client.get(f"/jobs/{job}/results")["items"]
    (path,) = [item["path"] for item in listed if item["path"].endswith(name)]
    return result(client, job, path)


def test_program_that_knows_nothing_of_the_platform_is_halted_and_goes_on(alice: Client) -> None:
    spec = spec_of("plain", STEPS="400", STEP_S="0.05")
    job = alice.submit(spec)["id"]
    alice.wait_step(job, 60)
    alice.post(f"/jobs/{job}/halt")
    halted = alice.wait_state(job, "HALTED", within_s=60)
    assert (halted["checkpoint"]["step"], halted["last_halt"]["steps_lost"]) == (None, None)
    reported = halted["progress"]["step"]
    assert f"saved by the program, step unknown, last reported {reported}" in halted["reason"]["message"]
    alice.post(f"/jobs/{job}/resume")
    alice.wait_state(job, "COMPLETED", within_s=120)
    first, second = (alice.raw_log(job, attempt=attempt).decode() for attempt in (1, 2))
    stopped = re.search(r"stopped after step (\d+)", first)
    assert stopped, first
    assert f"continuing at step {stopped[1]}" in second
    attempts = alice.get(f"/jobs/{job}/attempts")["items"]
    assert {one["n"]: one["repeated_steps"] for one in attempts} == {1: None, 2: 0}
    steps = [int(step) for step in re.findall(r"^step=(\d+)", first + second, re.MULTILINE)]
    assert steps == list(range(1, 401))


def test_counter_s_log_is_whole_over_a_halt(alice: Client) -> None:
    done = run_with_halts(alice, spec_of("counter", "python count.py 3000 200"), 500)
    printed = b"".join(alice.raw_log(done["id"], attempt=attempt) for attempt in (1, 2))
    numbers = [int(line.split()[1]) for line in printed.splitlines()]
    assert numbers == list(range(1, 3001))


def test_mnist_in_a_deep_learning_framework_halted_by_rest_ends_in_the_same_bits(alice: Client) -> None:
    straight, halted = both(alice, spec_of("mnist-jax", "python train.py --epochs 4"), 100)
    assert result(alice, halted, "score.txt") == result(alice, straight, "score.txt")
    assert alice.job(halted)["metrics"]["accuracy"]["last"] > 0.9
