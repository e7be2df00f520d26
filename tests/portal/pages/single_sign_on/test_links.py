"""What platform admins link and unlink, and what that ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.db import OperationalError, connection, transaction
from django.test import Client
from django.utils import timezone

from portal.pages import single_sign_on as pages
from tenants.errors import FieldsInvalid, IdentityUnknown, LastAdmin
from tenants.models import AuditEntry, Session, User
from tenants.services import identities, users
from tenants.services.identities import Identity, identity_link, identity_of, identity_unlink, user_of
from tests import factories
from tests.identity_provider.process import IdentityProvider
from tests.markup import markup
from tests.portal.pages.single_sign_on.conftest import said

pytestmark = pytest.mark.django_db
WHO = {"iss": "https://id.example", "sub": "erin"}


def test_an_identity_belongs_to_one_user(provider: IdentityProvider, erin: User, admin: User) -> None:
    factories.user("bob")
    with pytest.raises(FieldsInvalid):
        identity_link(user=admin, username="bob", subject="erin")
    identity_link(user=admin, username="erin", subject="other")
    assert identity_of(erin) == "other"
    assert SocialAccount.objects.count() == 1


def test_unlinking_ends_the_sessions_and_keeps_out(
    provider: IdentityProvider, erin: User, admin: User
) -> None:
    client = Client()
    provider.sign_in(client)
    identity_unlink(user=admin, username="erin")
    assert client.get("/me").status_code == 302
    assert "link" in said(provider.sign_in(client))


def test_an_identity_that_is_unlinked_meanwhile_stays_out(
    provider: IdentityProvider, erin: User, admin: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the link and the lock."""
    linked = identities._linked
    unlink = iter([identity_unlink])

    def meanwhile(identity: Identity) -> User | None:
        found = linked(identity)
        for act in unlink:
            act(user=admin, username="erin")
        return found

    monkeypatch.setattr(identities, "_linked", meanwhile)
    with pytest.raises(IdentityUnknown):
        user_of(Identity(provider.issuer, "erin"))


@pytest.mark.django_db(transaction=True)
def test_no_admin_comes_between_the_identity_and_its_session(
    provider: IdentityProvider, erin: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter, held = pages.enter, []

    def is_held() -> bool:
        try:
            with transaction.atomic():
                User.objects.select_for_update(no_key=True, nowait=True).get(pk=erin.pk)
        except OperationalError:
            return True
        finally:
            connection.close()
        return False

    def entering(request: Any, user: User, **more: Any) -> Any:
        with ThreadPoolExecutor(1) as another_connection:
            held.append(another_connection.submit(is_held).result())
        return enter(request, user, **more)

    monkeypatch.setattr(pages, "enter", entering)
    provider.sign_in(Client())
    assert held == [True]
    assert Session.objects.get().user == erin


def test_another_identity_ends_the_sessions_of_the_one_before(
    provider: IdentityProvider, erin: User, admin: User
) -> None:
    client = Client()
    provider.sign_in(client)
    identity_link(user=admin, username="erin", subject="another")
    assert client.get("/me").status_code == 302
    entry = AuditEntry.objects.filter(action="user.link").latest("pk")
    assert entry.details == {"subject": "another", "by": "admin", "sessions": 1}


def test_who_came_by_the_provider_is_no_longer_invited(provider: IdentityProvider, admin: User) -> None:
    users.user_create(user=admin, username="erin")
    identity_link(user=admin, username="erin", subject="erin")
    assert users.state_of(users.user_get(user=admin, username="erin")) == "invited"
    provider.sign_in(Client())
    assert users.state_of(users.user_get(user=admin, username="erin")) == "active"


@pytest.mark.parametrize(
    "leave",
    [
        identity_unlink,
        users.user_disable,
        partial(users.user_change, changes={"is_superuser": False}),
    ],
)
def test_two_admins_without_passwords_do_not_both_lose_the_way_in(
    provider: IdentityProvider, admin: User, leave: Any
) -> None:
    """An earlier login counts only if it was by the link by which the next one comes."""
    identity_link(user=admin, username="admin", subject="boss")
    factories.user("second", is_superuser=True)
    identity_link(user=admin, username="second", subject="second")
    for subject in ("boss", "second"):
        user_of(Identity(provider.issuer, subject))
    identity_unlink(user=admin, username="admin")
    with pytest.raises(LastAdmin):
        leave(user=admin, username="second")


def test_the_last_admin_keeps_the_only_way_in(provider: IdentityProvider, admin: User) -> None:
    identity_link(user=admin, username="admin", subject="boss")
    with pytest.raises(LastAdmin):
        identity_unlink(user=admin, username="admin")
    row = SocialAccount.objects.get()
    row.extra_data[identities.SIGNED_IN_AT] = timezone.now().isoformat()
    row.save()
    admin.set_unusable_password()
    admin.save()
    with pytest.raises(LastAdmin):
        identity_link(user=admin, username="admin", subject="mistyped")
    admin.set_password(factories.PASSWORD)
    admin.save()
    identity_link(user=admin, username="admin", subject="another")


def test_the_console_links_and_unlinks(provider: IdentityProvider, admin: User, signed_in: Any) -> None:
    factories.user("bob")
    client = signed_in(admin)
    page = "/admin-console/users/bob"
    assert "Single sign-on" in markup(client.get(page))
    client.post(f"{page}/identity", {"subject": "bob-at-provider"})
    assert "bob-at-provider" in markup(client.get(page))
    assert "the memberships that groups gave, with their API tokens" in markup(client.get(page))
    refused = client.post(f"{page}/identity", {"subject": " "})
    assert refused.status_code == 422
    (shown,) = identities.identities_of(user=admin, username="bob")
    assert f'name="unlink" value="{shown.id}"' in markup(client.get(page))
    identity_link(user=admin, username="bob", subject="newer")
    client.post(f"{page}/identity", {"unlink": shown.id})
    assert "newer" in markup(client.get(page)), "the page was older than this identity"
    (newer,) = identities.identities_of(user=admin, username="bob")
    client.post(f"{page}/identity", {"unlink": newer.id})
    assert "newer" not in markup(client.get(page))
    actions = [each.action for each in AuditEntry.objects.order_by("pk")]
    assert actions == ["user.link", "user.link", "user.unlink"]
