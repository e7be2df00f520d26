"""Opportunistic jobs by REST: the field of a job, the filter, what validation says, and what they hold."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.models import Attempt
from jobs.spec import parse
from jobs.states import State
from portal.api.examples import SPEC
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import JOBS, Api

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("installation")]
WARNING = "checkpoints_not_found"


def validated(caller: Api, **changes: Any) -> dict[str, Any]:
    answer = caller.post(f"{JOBS}:validate", SPEC | changes)
    assert answer.status_code == 200
    return dict(answer.json())


def test_a_job_says_whether_it_is_opportunistic_and_lists_are_filtered_by_it(alice: Api) -> None:
    made = {
        name: alice.post(JOBS, SPEC | {"name": name} | changes).json()
        for name, changes in (("usual", {}), ("sweep", {"opportunistic": True}))
    }
    assert [made[name]["opportunistic"] for name in ("usual", "sweep")] == [False, True]

    def found(query: str) -> set[str]:
        answer = alice.get(f"/jobs{query}")
        assert answer.status_code == 200
        return {job["name"] for job in answer.json()["items"]}

    assert found("") == {"usual", "sweep"}
    assert found("?opportunistic=true") == {"sweep"}
    assert found("?opportunistic=false") == {"usual"}
    assert alice.get("/jobs?opportunistic=perhaps").status_code == 400


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({}, True),
        ({"opportunistic": False}, False),
        ({"command": "python train.py --checkpoint-every 5"}, False),
        ({"code": {"files": {"train.py": "open(os.environ['CHECKPOINT_DIR'] + '/m', 'w')"}}}, False),
        ({"setup": ["ln -s $CHECKPOINT_DIR out"]}, False),
        ({"env": {"SAVE": "checkpoints"}}, False),
    ],
)
def test_one_whose_code_mentions_no_checkpoints_is_warned(
    alice: Api, changes: dict[str, Any], warned: bool
) -> None:
    found = validated(alice, **{"opportunistic": True} | changes)
    assert found["valid"]
    listed = [(each["path"], each["code"]) for each in found["warnings"]]
    assert (("opportunistic", WARNING) in listed) == warned


def test_what_an_archive_holds_is_not_known_so_nothing_is_said_of_it() -> None:
    sweep = SPEC | {"opportunistic": True}
    assert [warning.code for warning in parse(sweep).warnings] == [WARNING]
    assert parse(sweep | {"code": {"upload": "upl_00000000000000000000"}}).warnings == ()


def test_validation_shows_no_quota_of_a_job_that_uses_none(alice: Api) -> None:
    usual, sweep = validated(alice), validated(alice, opportunistic=True)
    assert usual["quota"]["slot_type"] == "cpu"
    assert sweep["quota"] is None
    said = {check["name"]: check["message"] for check in sweep["checks"]}
    assert said["quota"] == "cpu: opportunistic, so it takes nothing of the 8"


def test_quota_pool_and_node_show_what_they_hold(alice: Api, people: People) -> None:
    job = factories.job(owner=people.alice, slots=2, opportunistic=True)
    Attempt.objects.create(
        job=job, tenant=job.tenant, n=1, cluster="memory", slot_type="cpu", slots=2, learners=1,
        nodes=["node-a"], opportunistic=True,
    )  # fmt: skip
    factories.job(owner=people.alice, slots=3, state=State.PROCESSING)
    (quota,) = (
        one for one in alice.get("/tenants/vision-lab/quotas").json()["items"] if one["gpu_type"] == "cpu"
    )
    assert (quota["used"], quota["borrowed"], quota["opportunistic"]) == (3, 0, 2)
    (pool,) = alice.get("/cluster").json()["pools"]
    assert (pool["used"], pool["opportunistic"], pool["free"]) == (5, 2, 3)
    (node,) = alice.get("/cluster/nodes").json()["items"]
    assert {one["slots"]: one["opportunistic"] for one in node["jobs"]} == {2: True, 3: False}


def test_one_cannot_be_made_urgent(alice: Api) -> None:
    made = alice.post(JOBS, SPEC | {"opportunistic": True}).json()
    refused = alice.patch(f"/jobs/{made['id']}", {"priority": "urgent"})
    assert refused.status_code == 400
    assert [error["code"] for error in refused.json()["errors"]] == ["not_opportunistic"]
    assert alice.patch(f"/jobs/{made['id']}", {"priority": "low"}).json()["opportunistic"] is True


def test_no_clone_has_longer_to_save_than_an_opportunistic_job_may(alice: Api) -> None:
    made = alice.post(JOBS, SPEC | {"checkpoint": {"grace": "1h"}}).json()
    refused = alice.post(f"/jobs/{made['id']}/clone", {"spec": {"opportunistic": True}})
    assert refused.status_code == 400
    assert [(error["path"], error["code"]) for error in refused.json()["errors"]] == [
        ("checkpoint.grace", "not_opportunistic")
    ]
