"""JSON of what the database returns, also where PostgreSQL writes numbers otherwise than they were stored."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from jobs.serialization import json_bytes
from jobs.states import State
from learner_agent.wire import Metric
from portal.live.frames import items_frame, state_frame
from tests import factories
from tests.jobs.ingest.test_commit import submit


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [10**30, 2**64 - 1, -(2**63)]}, b'{"a":[1e+30,18446744073709551615,-9223372036854775808]}'),
        ((2**64, -(2**63) - 1), b"[1.8446744073709552e+19,-9.223372036854776e+18]"),
        ([10**400], b"[null]"),
        ({"is": True, "n": 2**64}, b'{"is":true,"n":1.8446744073709552e+19}'),
    ],
)
def test_an_integer_beyond_64_bits_becomes_a_float(value: object, text: bytes) -> None:
    assert json_bytes(value) == text


def test_what_has_no_json_form_is_still_an_error() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        json_bytes({"n": 2**64, "x": object()})


@pytest.mark.django_db
@pytest.mark.parametrize("value", [1e30, -1e308])
def test_a_job_whose_loss_diverges_can_be_read(value: float) -> None:
    job = factories.job(state=State.PROCESSING)
    submit(job, Metric("jsonl", 0, 5, [("loss", 1, 0, value)]))
    client = Client()
    client.force_login(job.owner)

    for path in (f"/api/v1/jobs/{job.pk}", "/api/v1/jobs", f"/t/{job.tenant.slug}/jobs/{job.pk}"):
        assert client.get(path).status_code == 200
    assert client.get(f"/api/v1/jobs/{job.pk}").json()["metrics"]["loss"]["last"] == value
    job.progress.refresh_from_db()
    for frame in (
        items_frame("job", 1, 1, [job.progress.metrics]),
        state_frame("jobs", 1, 1, [job.progress.metrics]),
    ):
        assert json.loads(frame.text)["items"][0]["loss"]["last"] == value
