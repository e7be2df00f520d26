"""Storage on pages: what a tenant stores on its usage page, the limits in the admin console, set with a reason."""

from __future__ import annotations

import pytest

from jobs import blobs
from tenants.models import Tenant, User
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn
from tests.portal.pages.test_images_page import etag_in

pytestmark = pytest.mark.django_db
PAGE = "/admin-console/tenants/vision-lab/storage"


def test_an_admin_sets_a_limit_and_the_history_says_who_and_why(
    lab: Tenant, root: User, signed_in: SignIn
) -> None:
    client = signed_in(root)
    blobs.put(lab.pk, b"x" * 2048)
    first = markup(client.get(PAGE))
    assert "Never changed." in first
    assert "Storage: code 2.0 KiB; no limit" in first
    typed = {"limit": "2Gi", "reason": "Their grant pays for it", "etag": etag_in(first)}
    done = markup(client.post(PAGE, typed, follow=True))
    assert "Storage limit updated." in done
    history = done[done.index('id="history"') :]
    assert "2.0 GiB" in history
    assert "Their grant pays for it" in history
    lab.refresh_from_db()
    assert lab.storage_limit == 2 * 1024**3
    assert "This has changed since you read it" in markup(client.post(PAGE, typed | {"limit": "3Gi"}))
    assert "of 2.0 GiB" in markup(client.get("/admin-console/tenants/vision-lab"))
    factories.quota(lab, "a100", 4)
    assert "2.0 KiB stored, limit 2.0 GiB" in client.get("/admin-console/quotas").content.decode()
    typed = {"limit": "", "reason": "No limit", "etag": etag_in(done)}
    assert "Storage limit updated." in markup(client.post(PAGE, typed, follow=True))
    lab.refresh_from_db()
    assert lab.storage_limit is None


def test_what_is_wrong_is_named_next_to_what_was_typed(lab: Tenant, root: User, signed_in: SignIn) -> None:
    client = signed_in(root)
    answer = client.post(PAGE, {"limit": "5 GB", "etag": etag_in(markup(client.get(PAGE)))})
    html = markup(answer)
    assert answer.status_code == 422
    assert "Did you mean 5Gi?" in html
    assert "A reason is required" in html
    assert 'value="5 GB"' in html
    lab.refresh_from_db()
    assert lab.storage_limit is None


def test_members_see_what_their_tenant_stores_and_how_near_the_limit_is(
    lab: Tenant, alice: User, signed_in: SignIn
) -> None:
    Tenant.objects.filter(pk=lab.pk).update(storage_limit=4096)
    blobs.put(lab.pk, b"x" * 4000)
    html = markup(signed_in(alice).get("/t/vision-lab/usage"))
    assert "Storage: code 3.9 KiB; limit 4.0 KiB" in html
    assert "96 B free" in html
    Tenant.objects.filter(pk=lab.pk).update(storage_limit=3000)
    assert "1000 B over the limit" in markup(signed_in(alice).get("/t/vision-lab/usage"))
