"""The people of the pages' tests, and a signed-in client for each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from jobs.models import Job
from tenants.models import Tenant, User
from tenants.roles import Role
from tests import factories
from tests.markup import markup

SignIn = Callable[[User], Client]
OpenPage = Callable[..., str]


@pytest.fixture
def lab() -> Tenant:
    return factories.tenant("vision-lab")


@pytest.fixture
def alice(lab: Tenant) -> User:
    return factories.member(lab, "alice", password=factories.PASSWORD)


@pytest.fixture
def carol(lab: Tenant) -> User:
    return factories.member(lab, "carol", role=Role.VIEWER)


@pytest.fixture
def dave(lab: Tenant) -> User:
    return factories.member(lab, "dave", role=Role.MANAGER)


@pytest.fixture
def admin() -> User:
    return factories.user("admin", is_superuser=True)


@pytest.fixture
def root() -> User:
    """An admin who can sign in with a password."""
    return factories.user("root", is_superuser=True, password=factories.PASSWORD)


@pytest.fixture
def signed_in() -> SignIn:
    def sign_in(who: User) -> Client:
        client = Client()
        client.force_login(who)
        return client

    return sign_in


@pytest.fixture
def open_page(client: Client) -> OpenPage:
    """The markup of a job's page, or of a tab of it, as this person sees it."""

    def open_one(user: User, job: Job, tab: str = "", *, status: int = 200) -> str:
        client.force_login(user)
        answer = client.get(f"/t/{job.tenant.slug}/jobs/{job.pk}{tab}")
        assert answer.status_code == status
        return markup(answer)

    return open_one
