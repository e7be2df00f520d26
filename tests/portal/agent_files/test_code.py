"""How a learner gets its job's code: a small archive comes along with the description of the job."""

from __future__ import annotations

import base64
import os
from typing import Any

import pytest
from django.test import Client

from jobs import blobs
from jobs.blobs import direct
from jobs.models import Blob
from jobs.states import State
from portal.agent_files import views
from tests import factories

pytestmark = pytest.mark.django_db


def described(content: bytes) -> tuple[dict[str, Any], Blob]:
    """What the description says of a job's code that has these bytes, and the blob that has them."""
    job = factories.job(state=State.PROCESSING)
    job.code = blobs.put(job.tenant_id, content)
    job.save(update_fields=["code"])
    return asked(factories.secret(job, job.attempt, 0)), job.code


def asked(secret: str) -> dict[str, Any]:
    answer = Client().get("/agent/v1/job", headers={"Authorization": f"Bearer {secret}"})
    assert answer.status_code == 200
    return dict(answer.json()["code"])


def test_small_code_comes_along_and_can_be_asked_for() -> None:
    code, blob = described(b"small")
    assert base64.b64decode(code["content"]) == b"small"
    assert (code["url"], code["sha256"], code["size"]) == ("/agent/v1/code", blob.sha256, 5)


def test_larger_code_is_asked_for() -> None:
    code, _ = described(os.urandom(views.INLINE_BYTES + 1))
    assert "content" not in code


def test_a_store_that_cannot_read_it_costs_the_description_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> bytes:
        raise blobs.BlobGone("gone")

    monkeypatch.setattr(blobs, "read", gone)
    code, _ = described(b"small")
    assert "content" not in code


def test_the_description_does_not_wait_for_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    monkeypatch.setattr(direct, "direct", lambda: "an object store")
    monkeypatch.setattr(blobs, "read", lambda *asked: read.append(asked) or b"small")
    code, _ = described(b"small")
    assert code["url"] == "/agent/v1/code"
    assert "content" not in code
    assert read == []
