"""A job's own packages and setup on a whole platform, by REST: from a folder of real wheels. Long."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_scheduler.clusters.wheelhouse import wheel
from tests.platform import Client, Platform, wait_for

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PROGRAM = """
import lower, pathlib, sys, time, upper
print('imports', upper.VERSION, lower.VERSION, sys.prefix != sys.base_prefix, flush=True)
if 'wait' in sys.argv:
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A package index of this folder, for the platform and for pip in its jobs; no other is asked."""
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        wheel(folder, "lower", version)
    wheel(folder, "upper", "1.5", requires=("lower<2",))
    empty = tmp_path_factory.mktemp("index")
    sources = {"PIP_FIND_LINKS": str(folder), "PIP_INDEX_URL": empty.as_uri()}
    before = {name: os.environ.get(name) for name in sources}
    os.environ.update(sources)
    yield folder
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Iterator[Platform]:
    with Platform(tmp_path_factory.mktemp("packages"), nodes="node-a:cpu:4,node-b:cpu:4") as platform:
        yield platform


@pytest.fixture(scope="module")
def alice(platform: Platform) -> Client:
    return platform.client("alice")


def spec(**changes: Any) -> dict[str, Any]:
    least = {
        "apiVersion": "luthier/v1",
        "name": "own packages",
        "framework": "plain",
        "code": {"files": {"train.py": PROGRAM, "requirements.txt": "upper\n"}},
        "command": "python train.py",
    }
    return {name: value for name, value in (least | changes).items() if value is not None}


def log(client: Client, job: str, **query: Any) -> list[str]:
    return [line["text"] for line in client.get(f"/jobs/{job}/logs", **query)["lines"]]


def test_a_job_has_its_packages_and_what_its_setup_installs_and_keeps_its_versions(
    alice: Client, wheels: Path
) -> None:
    asked = spec(
        requirements={"file": "requirements.txt"},
        setup=["pip install --quiet lower==2.0"],
        command="python train.py wait",
    )
    job = alice.submit(asked)["id"]
    wait_for(lambda: "imports 1.5 2.0 True" in log(alice, job), within_s=120, what="the program has begun")
    assert log(alice, job)[0] == "=== luthier: setup 1 of 1: pip install --quiet lower==2.0 ==="
    wheel(wheels, "upper", "9.0")
    alice.post(f"/jobs/{job}/halt")
    alice.wait_state(job, "HALTED", within_s=60)
    alice.post(f"/jobs/{job}/resume")
    wait_for(lambda: alice.job(job)["attempt"] == 2, within_s=60, what="the second attempt")
    wait_for(
        lambda: "imports 1.5 2.0 True" in log(alice, job, attempt=2), within_s=120, what="the same versions"
    )
    (wheels / "upper-9.0-py3-none-any.whl").unlink()
    events = alice.get(f"/jobs/{job}/events")["items"]
    assert [each["numbers"] for each in events if each["message"].startswith("Packages chosen: ")] == [
        {"packages": ["lower==1.0", "upper==1.5"]}
    ]
    alice.post(f"/jobs/{job}/cancel")
    alice.wait_state(job, "CANCELED", within_s=60)


def test_versions_are_chosen_and_mistakes_named_while_the_jobs_wait(
    platform: Platform, alice: Client, wheels: Path
) -> None:
    admin, quota = platform.client("admin"), f"/tenants/{alice.tenant}/quotas/cpu"
    before = next(
        each for each in alice.get(f"/tenants/{alice.tenant}/quotas")["items"] if each["gpu_type"] == "cpu"
    )
    assert admin.call("PUT", quota, {"limit": 0, "reason": "nothing may run"}).status == 200
    waits = alice.submit(spec(requirements={"file": "requirements.txt"}))["id"]
    wrong = alice.submit(spec(requirements=["nothing-of-this-name"]))["id"]
    failed = alice.wait_state(wrong, "FAILED", within_s=120)
    assert "nothing-of-this-name was not found" in failed["reason"]["message"]
    assert (failed["reason"]["code"], failed["attempt"]) == ("deploy_failed", 0)

    def chosen() -> list[str]:
        events = alice.get(f"/jobs/{waits}/events")["items"]
        return [each["message"] for each in events if each["message"].startswith("Packages chosen: ")]

    wait_for(chosen, within_s=120, what="versions")
    assert chosen() == ["Packages chosen: upper==1.5, lower==1.0. Its attempts use these versions."]
    assert alice.job(waits)["state"] == "QUEUED"
    wheel(wheels, "upper", "9.0")
    assert admin.call("PUT", quota, {"limit": before["limit"], "reason": "as before"}).status == 200
    alice.wait_state(waits, "COMPLETED", within_s=120)
    (wheels / "upper-9.0-py3-none-any.whl").unlink()
    assert log(alice, waits) == ["imports 1.5 1.0 True"]
    assert len(chosen()) == 1


def test_packages_that_do_not_exist_fail_the_job_in_the_resolvers_words(alice: Client) -> None:
    job = alice.submit(spec(requirements=["nothing-of-this-name"], max_restarts=3))["id"]
    failed = alice.wait_state(job, "FAILED", within_s=120)
    assert "nothing-of-this-name was not found" in failed["reason"]["message"]
    assert failed["attempt"] <= 1, "0 if it was known before the first attempt"


def test_a_setup_command_that_fails_is_the_reason_of_the_failure(alice: Client) -> None:
    job = alice.submit(spec(setup=["true", "exit 3"]))["id"]
    failed = alice.wait_state(job, "FAILED", within_s=120)
    assert failed["reason"]["code"] == "setup_failed"
    assert "Setup command 2 of 2 exited with code 3: exit 3" in failed["reason"]["message"]


def test_a_halt_during_the_setup_halts_the_job(alice: Client) -> None:
    job = alice.submit(spec(setup=["echo here; sleep 600"], requirements=["upper"]))["id"]
    wait_for(lambda: "here" in log(alice, job), within_s=120, what="the setup has begun")
    alice.post(f"/jobs/{job}/halt")
    alice.wait_state(job, "HALTED", within_s=60)


def test_a_runtime_that_an_admin_adds_runs_jobs_without_a_restart(platform: Platform, alice: Client) -> None:
    admin = platform.client("admin")
    own = {"slug": "own", "title": "Own", "requirements": ["upper"], "python": VERSION}
    assert admin.call("POST", "/runtimes", own).status == 201
    asked = spec(framework="own", code={"files": {"train.py": PROGRAM}})
    job = alice.submit(asked)["id"]
    alice.wait_state(job, "COMPLETED", within_s=120)
    assert log(alice, job) == ["imports 1.5 1.0 True"]


def test_a_plain_python_of_this_machine_runs_with_packages(alice: Client) -> None:
    job = alice.submit(spec(framework=None, python=VERSION, requirements=["upper"]))["id"]
    alice.wait_state(job, "COMPLETED", within_s=120)
    assert log(alice, job) == ["imports 1.5 1.0 True"]
