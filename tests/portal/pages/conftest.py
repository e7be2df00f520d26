"""The people of the pages' tests, and a signed-in client for each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from tenants.models import Tenant, User
from tenants.roles import Role
from tests import factories

SignIn = Callable[[User], Client]


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
def signed_in() -> SignIn:
    def sign_in(who: User) -> Client:
        client = Client()
        client.force_login(who)
        return client

    return sign_in
