"""`manage.py what_if`: the scheduler's response to hypothetical limits."""

from __future__ import annotations

import json
import re
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from jobs.models import ClusterNode
from tenants.models import Project, ProjectShare, Quota
from tests import factories

pytestmark = pytest.mark.django_db


def answer(*arguments: str) -> dict[str, list[dict[str, object]]]:
    out = StringIO()
    call_command("what_if", "--json", *arguments, stdout=out)
    return dict(json.loads(out.getvalue()))


@pytest.fixture
def waiting_job() -> str:
    """A job of four CPU slots whose tenant may use two."""
    ClusterNode.objects.create(name="node-a", slot_type="cpu", slots=8, ready=True)
    lab = factories.tenant("vision-lab", quotas={"cpu": 2})
    return str(factories.job(of=lab, learners=2, slots=2).pk)


def test_a_higher_limit_would_start_the_job_and_sets_nothing(waiting_job: str) -> None:
    assert [job["job"] for job in answer()["waiting"]] == [waiting_job]
    assert [job["job"] for job in answer("--limit", "vision-lab:cpu=4")["starting"]] == [waiting_job]
    assert Quota.objects.get().limit == 2


def test_an_unknown_tenant_is_named_with_those_there_are(waiting_job: str) -> None:
    with pytest.raises(CommandError, match=r"no tenant missing; there are vision-lab"):
        answer("--limit", "missing:cpu=4")


def test_an_unknown_type_is_named_with_those_there_are(waiting_job: str) -> None:
    with pytest.raises(CommandError, match=r"no type a100; there are cpu"):
        answer("--limit", "vision-lab:a100=1")


def test_limits_that_cannot_be_set_are_noted_with_the_result(waiting_job: str) -> None:
    seen = answer("--limit", "vision-lab:cpu=999")
    assert [job["job"] for job in seen["starting"]] == [waiting_job]
    (note,) = seen["overcommitted"]
    assert "all limits for cpu would sum to 999; the cluster has 8, so at most 10 may be allocated" in str(
        note
    )
    out = StringIO()
    call_command("what_if", "--limit", "vision-lab:cpu=999", stdout=out)
    assert out.getvalue().startswith("These limits cannot be set: all limits for cpu would sum to 999")
    assert answer("--limit", "vision-lab:cpu=8")["overcommitted"] == []


def test_a_malformed_limit_gets_an_example(waiting_job: str) -> None:
    with pytest.raises(CommandError, match="TENANT:TYPE=SLOTS"):
        answer("--limit", "vision-lab=4")


@pytest.fixture
def held_back() -> str:
    """A job of four CPU slots whose project may have two."""
    ClusterNode.objects.create(name="node-a", slot_type="cpu", slots=8, ready=True)
    lab = factories.tenant("vision-lab", quotas={"cpu": 6})
    for name, limit in (("speech", 2), ("vision", None)):
        project = Project.objects.create(tenant=lab, slug=name)
        ProjectShare.objects.create(project=project, gpu_type="cpu", guarantee=1, limit=limit)
    return str(factories.job(of=lab, learners=2, slots=2, project="speech").pk)


def test_another_limit_of_a_project_would_start_the_job_and_sets_nothing(held_back: str) -> None:
    assert [job["job"] for job in answer()["waiting"]] == [held_back]
    for tried in ("4", "none"):
        seen = answer("--project-limit", f"vision-lab/speech:cpu={tried}")
        assert ([job["job"] for job in seen["starting"]], seen["overcommitted"]) == ([held_back], [])
    assert answer("--project-limit", "vision-lab/vision:cpu=4")["starting"] == []
    assert ProjectShare.objects.get(project__slug="speech").limit == 2


def test_shares_of_projects_that_cannot_be_set_are_noted(held_back: str) -> None:
    seen = answer("--guarantee", "vision-lab/speech:cpu=6")
    assert seen["overcommitted"] == [
        "the guarantee is 6: the limit cannot be less",
        "the tenant's projects would be guaranteed 7 cpu together; its limit is 6",
    ]
    seen = answer("--guarantee", "vision-lab/vision:cpu=6", "--limit", "vision-lab:cpu=8")
    assert seen["overcommitted"] == [], "with the limit that is tried"


def test_a_limit_below_what_projects_are_guaranteed_is_noted(held_back: str) -> None:
    assert answer("--limit", "vision-lab:cpu=1")["overcommitted"] == [
        "the tenant's projects are guaranteed 2: lower these first"
    ]
    assert answer("--limit", "vision-lab:cpu=2")["overcommitted"] == []
    lowered = answer("--limit", "vision-lab:cpu=1", "--guarantee", "vision-lab/speech:cpu=0")
    assert lowered["overcommitted"] == [], "with the guarantees that are tried"
    raised = answer("--limit", "vision-lab:cpu=1", "--guarantee", "vision-lab/speech:cpu=1")
    assert "the tenant's projects are guaranteed 2: lower these first" in raised["overcommitted"]
    none = answer("--limit", "vision-lab:cpu=0", "--guarantee", "vision-lab/speech:cpu=0")
    assert none["overcommitted"] == ["the tenant's projects are guaranteed 1: lower these first"]
    assert answer("--limit", "vision-lab:cpu=1", "--project-limit", "vision-lab/speech:cpu=1")[
        "overcommitted"
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--guarantee", "missing/speech:cpu=1"], "--guarantee: no tenant missing; there are vision-lab"),
        (
            ["--project-limit", "vision-lab/spech:cpu=1"],
            "vision-lab has no project spech; there are speech, vision",
        ),
        (["--guarantee", "vision-lab/speech:a100=1"], "no type a100; there are cpu"),
        (["--guarantee", "vision-lab:cpu=1"], "TENANT/PROJECT:TYPE=SLOTS"),
        (["--guarantee", "vision-lab/speech:cpu=none"], "TENANT/PROJECT:TYPE=SLOTS"),
        (["--project-limit", "vision-lab/speech:cpu=-1"], "TENANT/PROJECT:TYPE=SLOTS"),
        (["--project-limit", "vision-lab/speech:cpu=0"], "a limit is at least 1; none: no limit"),
    ],
)
def test_wrong_shares_of_projects_are_named(held_back: str, arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=re.escape(message)):
        answer(*arguments)
