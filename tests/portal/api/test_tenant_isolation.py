"""A second tenant is refused where its programs could reach those of the first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.test import Client
from pytest_django import Settings

from gpu_scheduler.clusters.base import ClusterBusy, Isolation
from gpu_scheduler.clusters.memory import MemoryCluster
from jobs import clusters
from tenants.models import Tenant
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

BODY = {"slug": "speech", "name": "Speech", "reason": "A new group"}
pytestmark = pytest.mark.django_db


class LocalLike(MemoryCluster):
    """Says what a local cluster says of its machine."""

    found: Isolation | ClusterBusy = Isolation(
        False, "programs are not isolated: this kernel has no Landlock"
    )

    def isolation(self) -> Isolation:
        if isinstance(self.found, ClusterBusy):
            raise self.found
        return self.found


@pytest.fixture
def cluster() -> Iterator[LocalLike]:
    made = LocalLike()
    clusters.use(made)
    yield made
    clusters.use(None)


@pytest.fixture(autouse=True)
def they_do_not_trust_each_other(settings: Settings) -> None:
    settings.LUTHIER_TENANTS_TRUST_EACH_OTHER = False


def test_a_second_tenant_is_refused_where_programs_are_not_isolated(admin: Api, cluster: LocalLike) -> None:
    answer = admin.post("/tenants", BODY)
    assert (answer.status_code, answer.json()["code"]) == (409, "tenants_not_isolated")
    assert "this kernel has no Landlock" in answer.json()["detail"]
    assert "LUTHIER_TENANTS_TRUST_EACH_OTHER=yes" in answer.json()["detail"]
    assert not Tenant.objects.filter(slug="speech").exists()


def test_it_is_made_where_tenants_trust_each_other(
    admin: Api, cluster: LocalLike, settings: Settings
) -> None:
    settings.LUTHIER_TENANTS_TRUST_EACH_OTHER = True
    assert admin.post("/tenants", BODY).status_code == 201


def test_it_is_made_where_programs_are_isolated(admin: Api, cluster: LocalLike) -> None:
    cluster.found = Isolation(True, "programs are isolated")
    assert admin.post("/tenants", BODY).status_code == 201


def test_the_first_tenant_needs_no_isolation(admin: Api, cluster: LocalLike) -> None:
    Tenant.objects.all().delete()
    assert admin.post("/tenants", BODY).status_code == 201


def test_a_cluster_that_does_not_answer_counts_as_not_isolated(admin: Api, cluster: LocalLike) -> None:
    cluster.found = ClusterBusy("The node daemon is not responding.")
    answer = admin.post("/tenants", BODY)
    assert (answer.status_code, answer.json()["code"]) == (409, "tenants_not_isolated")


def test_a_cluster_that_isolates_by_itself_is_not_asked(admin: Api) -> None:
    assert clusters.isolation() is None
    assert admin.post("/tenants", BODY).status_code == 201


def test_the_console_says_so_beside_the_name(admin: Api, cluster: LocalLike, people: People) -> None:
    browser = Client()
    browser.force_login(people.admin)
    form = {"name": "Speech", "slug": "speech", "manager": "", "reason": "A new group"}
    page = browser.post("/admin-console/tenants/new", form).content.decode()
    assert "LUTHIER_TENANTS_TRUST_EACH_OTHER=yes" in page
    assert not Tenant.objects.filter(slug="speech").exists()
