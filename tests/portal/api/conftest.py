"""Callers of the API: each person with their own token, as programs use it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.cache import cache
from django.http import HttpResponse
from django.test import Client

from jobs.models import ClusterNode, Runtime
from portal.api.examples import SPEC
from tenants.models import Token, User
from tests.jobs.conftest import People, people

__all__ = ["people"]
JOBS = "/tenants/vision-lab/jobs"


class Api:
    """A caller with a token: api.get("/me"), api.post("/tenants/x/members", {...}). Paths below /api/v1."""

    def __init__(self, user: User | None = None, secret: str = "") -> None:
        self.client = Client(raise_request_exception=True)
        self.headers: dict[str, str] = {}
        if user is not None:
            _, secret = Token.objects.create(user=user, name="test", expiry=None)
        if secret:
            self.headers["Authorization"] = f"Bearer {secret}"

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> HttpResponse:
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        kind = sent.pop("Content-Type", "application/json")
        data = body if isinstance(body, bytes | str) else b"" if body is None else json.dumps(body)
        return self.client.generic(method, f"/api/v1{path}", data, content_type=kind, headers=sent)

    def get(self, path: str, **headers: str) -> HttpResponse:
        return self("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> HttpResponse:
        return self("POST", path, body, **headers)

    def put(self, path: str, body: Any = None, **headers: str) -> HttpResponse:
        return self("PUT", path, body, **headers)

    def patch(self, path: str, body: Any = None, **headers: str) -> HttpResponse:
        return self("PATCH", path, body, **headers)

    def delete(self, path: str, **headers: str) -> HttpResponse:
        return self("DELETE", path, **headers)


def submit(caller: Api, **changes: Any) -> dict[str, Any]:
    """A job of the example's spec, with these changes; its JSON."""
    answer = caller.post(JOBS, SPEC | changes)
    assert answer.status_code == 201, answer.content
    return dict(answer.json())


@pytest.fixture
def installation(people: People) -> None:
    """What a spec is judged against: one node and one runtime."""
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=8)
    Runtime.objects.create(slug="sklearn", title="scikit-learn")


@pytest.fixture(autouse=True)
def _fresh_throttles() -> None:
    cache.clear()


@pytest.fixture
def alice(people: People) -> Api:
    return Api(people.alice)


@pytest.fixture
def bob(people: People) -> Api:
    return Api(people.bob)


@pytest.fixture
def carol(people: People) -> Api:
    return Api(people.carol)


@pytest.fixture
def dave(people: People) -> Api:
    return Api(people.dave)


@pytest.fixture
def admin(people: People) -> Api:
    return Api(people.admin)


@pytest.fixture
def anybody(db: None) -> Api:
    """A caller without a token or a session."""
    return Api()
