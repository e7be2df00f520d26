"""The people of every story: alice owns the job, bob is of another tenant, carol looks on, dave manages."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tenants.models import Tenant, User
from tenants.roles import Role
from tests import factories


@dataclass(frozen=True)
class People:
    vision: Tenant
    nlp: Tenant
    alice: User
    bob: User
    carol: User
    dave: User
    admin: User


@pytest.fixture
def people(db: None) -> People:
    vision, nlp = factories.tenant("vision-lab"), factories.tenant("nlp-research")
    return People(
        vision=vision,
        nlp=nlp,
        alice=factories.member(vision, "alice"),
        bob=factories.member(nlp, "bob"),
        carol=factories.member(vision, "carol", Role.VIEWER),
        dave=factories.member(vision, "dave", Role.MANAGER),
        admin=factories.user("admin", is_superuser=True),
    )
