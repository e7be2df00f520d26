"""Signing in by a real OpenID provider: who gets in as whom, who does not, and what a provider may do wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import jwt
import pytest
import requests
from allauth.socialaccount.models import SocialAccount
from cryptography.hazmat.primitives.asymmetric import rsa
from django.conf import LazySettings
from django.contrib.messages import get_messages
from django.core.cache import cache
from django.db import OperationalError, connection, transaction
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from portal import single_sign_on
from portal.health import diagnosis
from portal.pages import single_sign_on as pages
from tenants.errors import AccountClosed, FieldsInvalid, IdentityUnknown, LastAdmin, UserDisabled
from tenants.models import AuditEntry, Session, Tenant, User
from tenants.services import groups, identities, users
from tenants.services.identities import Identity, identity_link, identity_of, identity_unlink, user_of
from tests import factories
from tests.identity_provider.process import CLIENT_SECRET, ERIN, IdentityProvider
from tests.markup import markup

pytestmark = pytest.mark.django_db
WHO = {"iss": "https://id.example", "sub": "erin"}
FOREIGN_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="module")
def process() -> Iterator[IdentityProvider]:
    with IdentityProvider("http://testserver") as started:
        yield started


@pytest.fixture
def provider(process: IdentityProvider, settings: LazySettings) -> IdentityProvider:
    process.set(account="erin", claims=ERIN, skew_s=0)
    for name, value in process.settings().items():
        setattr(settings, name, value)
    cache.clear()  # budgets
    return process


@pytest.fixture
def erin(provider: IdentityProvider, admin: User) -> User:
    """A user whom an admin has linked to the provider's erin."""
    user = factories.user("erin")
    return identity_link(user=admin, username=user.get_username(), subject="erin")


def said(response: HttpResponse) -> str:
    """The message on the page to which a refusal leads."""
    assert response.status_code == 302, response.content
    assert response["Location"].startswith("/login")
    return " ".join(map(str, get_messages(response.wsgi_request)))


def signed_in(client: Client) -> str | None:
    user_id = client.session.get("_auth_user_id")
    return User.objects.get(pk=user_id).get_username() if user_id else None


def test_a_linked_person_signs_in_by_code_pkce_state_and_nonce(
    provider: IdentityProvider, erin: User
) -> None:
    client = Client(headers={"User-Agent": "Mozilla/5.0 (X11; Linux) Firefox/140"}, REMOTE_ADDR="10.0.0.7")
    asked = parse_qs(urlsplit(client.get("/login/sso")["Location"]).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert {"state", "nonce", "code_challenge"} <= set(asked)
    before = client.session.session_key
    arrived = provider.sign_in(client, next="/help")
    assert (arrived.status_code, arrived["Location"]) == (302, "/help")
    assert signed_in(client) == "erin"
    session = Session.objects.get(pk=client.session.session_key)
    assert session.pk != before
    assert (session.user, session.address) == (erin, "10.0.0.7")
    assert "Firefox" in session.agent
    assert (session.expire_date - session.started_at).days >= 13
    entry = AuditEntry.objects.get(action="login.success")
    assert (entry.actor, entry.address, entry.details) == (erin, "10.0.0.7", {"by": "single sign-on"})
    stored = {"issuer": provider.issuer, "subject": "erin", "groups": []}
    kept = SocialAccount.objects.get().extra_data
    assert kept == stored | {"signed_in_at": kept["signed_in_at"]}


def test_the_login_page_offers_it_beside_the_password(provider: IdentityProvider, alice: User) -> None:
    page = markup(Client().get("/login", {"next": "/help?q=a&b=c"}))
    assert "Sign in with Example ID" in page
    assert 'href="/login/sso?next=%2Fhelp%3Fq%3Da%26b%3Dc"' in page
    done = Client().post("/login", {"username": "alice", "password": factories.PASSWORD})
    assert (done.status_code, done["Location"]) == (302, "/")


def test_without_a_provider_there_is_no_such_page() -> None:
    assert Client().get("/login/sso").status_code == 404
    assert Client().get("/login/sso/callback").status_code == 404
    assert "/login/sso" not in markup(Client().get("/login"))


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example/x", "javascript:alert(1)"])
def test_it_leads_to_no_other_site(provider: IdentityProvider, erin: User, target: str) -> None:
    assert provider.sign_in(Client(), next=target)["Location"] == "/"


def test_a_password_login_after_a_sign_on_that_was_begun_lasts_as_long_as_any(
    provider: IdentityProvider, alice: User
) -> None:
    client = Client()
    client.get("/login/sso")
    client.post("/login", {"username": "alice", "password": factories.PASSWORD})
    session = Session.objects.get(pk=client.session.session_key)
    assert (session.expire_date - session.started_at).days >= 13


def test_the_groups_of_the_provider_become_memberships(
    provider: IdentityProvider, erin: User, lab: Tenant, admin: User
) -> None:
    wanted = groups.read_rules("vision-lab viewer ml users")
    groups.rules_set(user=admin, wanted=wanted, if_match=None)
    for names, roles in ((["staff", "ml users"], ["viewer"]), (["staff"], [])):
        provider.set(claims=ERIN | {"groups": names})
        provider.sign_in(Client())
        assert list(erin.memberships.values_list("role", flat=True)) == roles


class TestWhoseAccount:
    def test_an_identity_that_is_not_linked_gets_in_nowhere(self, provider: IdentityProvider) -> None:
        factories.user("erin")  # has this very name and address
        client = Client()
        text = said(provider.sign_in(client))
        assert "Ask a platform admin to link it" in text
        assert signed_in(client) is None
        assert not SocialAccount.objects.exists()
        entry = AuditEntry.objects.get()
        assert (entry.action, entry.target, entry.details["reason"]) == (
            "login.failure",
            "",
            "unknown identity",
        )

    def test_a_disabled_user_stays_out(self, provider: IdentityProvider, erin: User) -> None:
        User.objects.update(is_active=False)
        client = Client()
        assert "disabled" in said(provider.sign_in(client))
        assert signed_in(client) is None
        assert AuditEntry.objects.get(action="login.failure").target == "erin"

    def test_a_service_account_stays_out_even_if_a_row_says_otherwise(
        self, provider: IdentityProvider
    ) -> None:
        account = factories.user("lab.robot", is_service_account=True)
        uid = Identity(provider.issuer, "erin").uid
        SocialAccount.objects.create(user=account, provider="openid_connect", uid=uid)
        client = Client()
        assert said(provider.sign_in(client))
        assert signed_in(client) is None

    @pytest.mark.parametrize("verified", [False, "true", "false", 1, None])
    def test_an_address_that_is_not_verified_links_nothing(
        self, provider: IdentityProvider, settings: LazySettings, verified: Any
    ) -> None:
        settings.LUTHIER_OIDC_LINK_BY_EMAIL = True
        factories.user("erin")
        provider.set(claims=ERIN | {"email_verified": verified})
        client = Client()
        assert "link" in said(provider.sign_in(client))
        assert signed_in(client) is None

    def test_a_verified_address_links_where_the_rule_is_set(
        self, provider: IdentityProvider, settings: LazySettings
    ) -> None:
        settings.LUTHIER_OIDC_LINK_BY_EMAIL = True
        user = factories.user("another-name")
        User.objects.filter(pk=user.pk).update(email="Erin@Example.org")
        client = Client()
        provider.sign_in(client)
        assert signed_in(client) == "another-name"
        assert identity_of(user) == "erin"
        entry = AuditEntry.objects.get(action="user.link")
        assert entry.details == {"subject": "erin", "by": "verified e-mail address"}

    @pytest.mark.parametrize("lookalike", ["er\u0131n@example.org", "erin@example.\u0131org"])
    def test_an_address_that_only_looks_alike_does_not_link(
        self, provider: IdentityProvider, settings: LazySettings, lookalike: str
    ) -> None:
        """The database takes a dotless i for an i, as in CVE-2019-19844."""
        settings.LUTHIER_OIDC_LINK_BY_EMAIL = True
        User.objects.filter(pk=factories.user("erin").pk).update(email=lookalike.replace("\u0131", "i"))
        with pytest.raises(IdentityUnknown):
            user_of(Identity(provider.issuer, "erin", email=lookalike))
        User.objects.update(email=lookalike)
        with pytest.raises(IdentityUnknown):
            user_of(Identity(provider.issuer, "erin", email=lookalike.replace("\u0131", "i")))
        assert not SocialAccount.objects.exists()

    @pytest.mark.parametrize("case", ["two", "admin", "linked", "disabled", "service"])
    def test_a_verified_address_does_not_link(
        self, provider: IdentityProvider, settings: LazySettings, admin: User, case: str
    ) -> None:
        """Not one of two users, no platform admin, no user with an identity, none who may not sign in."""
        settings.LUTHIER_OIDC_LINK_BY_EMAIL = True
        user = factories.user(
            "erin",
            is_superuser=case == "admin",
            is_active=case != "disabled",
            is_service_account=case == "service",
        )
        if case == "two":
            User.objects.filter(pk=factories.user("erin2").pk).update(email="erin@example.org")
        if case == "linked":
            identity_link(user=admin, username="erin", subject="another")
        client = Client()
        assert said(provider.sign_in(client))
        assert signed_in(client) is None
        assert identity_of(user) == ("another" if case == "linked" else None)

    def test_a_new_user_never_takes_the_account_of_another(
        self, provider: IdentityProvider, settings: LazySettings, admin: User
    ) -> None:
        settings.LUTHIER_OIDC_CREATE_USERS = True
        provider.set(claims=ERIN | {"preferred_username": "ADMIN", "email_verified": False})
        client = Client()
        provider.sign_in(client)
        made = User.objects.get(username="ADMIN-2")
        assert signed_in(client) == "ADMIN-2"
        assert (made.is_superuser, made.has_usable_password(), made.email) == (False, False, "")
        again = Client()
        provider.set(claims={})
        provider.sign_in(again)
        assert signed_in(again) == "ADMIN-2"

    @pytest.mark.parametrize("by_email", [False, True])
    @pytest.mark.parametrize("superuser", [False, True])
    def test_a_disabled_user_gets_no_second_account(
        self, provider: IdentityProvider, settings: LazySettings, by_email: bool, superuser: bool
    ) -> None:
        settings.LUTHIER_OIDC_CREATE_USERS = True
        settings.LUTHIER_OIDC_LINK_BY_EMAIL = by_email
        factories.user("old-name", is_active=False, is_superuser=superuser)
        User.objects.update(email="Erin@example.org")
        with pytest.raises(AccountClosed) as refused:
            user_of(Identity(provider.issuer, "erin", email="erin@example.org", username="erin"))
        assert refused.value.details["username"] == "old-name"
        assert User.objects.count() == 1

    def test_the_link_of_a_disabled_user_stays(
        self, provider: IdentityProvider, erin: User, admin: User
    ) -> None:
        """Without it the identity would be an unknown one, which gets a new user where the rule is set."""
        User.objects.filter(pk=erin.pk).update(is_active=False)
        with pytest.raises(UserDisabled):
            identity_unlink(user=admin, username="erin")
        with pytest.raises(UserDisabled):
            identity_link(user=admin, username="erin", subject="another")
        assert identity_of(erin) == "erin"

    @pytest.mark.parametrize(
        ("claimed", "name"),
        [("..", "erin"), (".", "erin"), ("-", "erin"), ("\uff41dmin", "admin"), ("a/../b", "a-..-b")],
    )
    def test_a_new_users_name_is_one_that_forms_and_pages_can_hold(self, claimed: str, name: str) -> None:
        claims = {"iss": "https://id.example", "sub": "erin", "preferred_username": claimed}
        verified = {"email": "erin@example.org", "email_verified": True}
        assert Identity.from_claims(claims | verified).username == name

    def test_the_same_subject_of_another_issuer_is_another_person(self, erin: User) -> None:
        with pytest.raises(Exception, match="No user here is linked"):
            user_of(Identity("https://other.example", "erin"))


class TestAdmins:
    def test_an_identity_belongs_to_one_user(
        self, provider: IdentityProvider, erin: User, admin: User
    ) -> None:
        factories.user("bob")
        with pytest.raises(FieldsInvalid):
            identity_link(user=admin, username="bob", subject="erin")
        identity_link(user=admin, username="erin", subject="other")
        assert identity_of(erin) == "other"
        assert SocialAccount.objects.count() == 1

    def test_unlinking_ends_the_sessions_and_keeps_out(
        self, provider: IdentityProvider, erin: User, admin: User
    ) -> None:
        client = Client()
        provider.sign_in(client)
        identity_unlink(user=admin, username="erin")
        assert client.get("/me").status_code == 302
        assert "link" in said(provider.sign_in(client))

    def test_an_identity_that_is_unlinked_meanwhile_stays_out(
        self, provider: IdentityProvider, erin: User, admin: User, monkeypatch: pytest.MonkeyPatch
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
        self, provider: IdentityProvider, erin: User, monkeypatch: pytest.MonkeyPatch
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
        self, provider: IdentityProvider, erin: User, admin: User
    ) -> None:
        client = Client()
        provider.sign_in(client)
        identity_link(user=admin, username="erin", subject="another")
        assert client.get("/me").status_code == 302
        entry = AuditEntry.objects.filter(action="user.link").latest("pk")
        assert entry.details == {"subject": "another", "by": "admin", "sessions": 1}

    def test_who_came_by_the_provider_is_no_longer_invited(
        self, provider: IdentityProvider, admin: User
    ) -> None:
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
        self, provider: IdentityProvider, admin: User, leave: Any
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

    def test_the_last_admin_keeps_the_only_way_in(self, provider: IdentityProvider, admin: User) -> None:
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

    def test_the_console_links_and_unlinks(
        self, provider: IdentityProvider, admin: User, signed_in: Any
    ) -> None:
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


class TestWrongProviders:
    def test_keys_may_rotate_at_any_time(self, provider: IdentityProvider, erin: User) -> None:
        for _ in range(2):
            provider.set(rotate=True)
            client = Client()
            provider.sign_in(client)
            assert signed_in(client) == "erin"

    @pytest.mark.parametrize(
        "forged",
        ["unsigned", "shared secret", "foreign key", "unknown key", "audience", "issuer", "azp", "empty"],
    )
    def test_a_token_that_the_provider_did_not_make_for_us_is_refused(
        self, provider: IdentityProvider, erin: User, monkeypatch: pytest.MonkeyPatch, forged: str
    ) -> None:
        """As a proxy between the two machines would have to make it."""
        exchange = single_sign_on.Protocol.get_access_token_data

        def forging(self: Any, *args: Any, **more: Any) -> Any:
            data = exchange(self, *args, **more)
            return data | {"id_token": forge(data["id_token"], forged)}

        monkeypatch.setattr(single_sign_on.Protocol, "get_access_token_data", forging)
        client = Client()
        assert "did not confirm who you are" in said(provider.sign_in(client))
        assert signed_in(client) is None

    def test_userinfo_about_another_person_is_refused(
        self, provider: IdentityProvider, erin: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(single_sign_on.Protocol, "_fetch_user_info", lambda self, token: {"sub": "bob"})
        client = Client()
        assert "did not confirm who you are" in said(provider.sign_in(client))
        assert signed_in(client) is None

    @pytest.mark.parametrize(
        ("in_token", "in_userinfo", "email"),
        [
            ({"email": "victim@x.org"}, {"email": "erin@x.org", "email_verified": True}, "erin@x.org"),
            ({"email": "erin@x.org", "email_verified": True}, {"email": "victim@x.org"}, "erin@x.org"),
            ({"email_verified": True}, {"email": "victim@x.org"}, ""),
            ({"email": "victim@x.org", "email_verified": False}, {"email_verified": True}, ""),
        ],
    )
    def test_an_address_is_verified_by_the_document_that_has_it(
        self,
        provider: IdentityProvider,
        monkeypatch: pytest.MonkeyPatch,
        in_token: Any,
        in_userinfo: Any,
        email: str,
    ) -> None:
        found = []
        monkeypatch.setattr(single_sign_on.Protocol, "_decode_id_token", lambda *_: WHO | in_token)
        monkeypatch.setattr(
            single_sign_on.Protocol, "_fetch_user_info", lambda *_: {"sub": "erin"} | in_userinfo
        )
        from_claims = Identity.from_claims
        monkeypatch.setattr(
            Identity, "from_claims", lambda claims: found.append(from_claims(claims)) or found[0]
        )
        provider.sign_in(Client())
        assert found[0].email == email

    @pytest.mark.parametrize(
        ("method", "answer"),
        [
            ("_fetch_user_info", []),
            ("_fetch_user_info", None),
            ("get_access_token_data", {"access_token": "x", "expires_in": 1e30}),
        ],
    )
    def test_an_odd_answer_is_refused_with_a_sentence(
        self, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch, method: str, answer: Any
    ) -> None:
        monkeypatch.setattr(single_sign_on.Protocol, method, lambda *_, **__: answer)
        assert "did not confirm who you are" in said(provider.sign_in(Client()))

    @pytest.mark.parametrize("subject", ["a\0b", "\ud800", "", "x" * 256])
    def test_a_subject_that_no_row_can_hold_is_refused(self, subject: str) -> None:
        with pytest.raises(ValueError, match="subject"):
            Identity.from_claims(WHO | {"sub": subject})

    def test_odd_documents_are_refused_with_a_sentence(
        self, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A discovery document that is a list, keys that are null, and userinfo that is not JSON but a signed token."""
        get = requests.Session.get
        client = Client()
        for path, body in ((".well-known", b"[]"), ("/jwks", b"null"), ("/me", b"eyJ.e30.x")):

            def answered(self: Any, url: str, path: str = path, body: bytes = body, **more: Any) -> Any:
                response = get(self, url, **more)
                if path in url:
                    response._content = body
                return response

            with monkeypatch.context() as patched:
                patched.setattr(requests.Session, "get", answered)
                started = client.get("/login/sso")
                if path == ".well-known":
                    assert "did not confirm who you are" in said(started)
                    continue
                back = urlsplit(provider.authorize(started["Location"]))
                assert "did not confirm who you are" in said(client.get(f"{back.path}?{back.query}"))

    @pytest.mark.parametrize(("skew_s", "works"), [(-50, True), (50, True), (90, False), (-700, False)])
    def test_clocks_may_differ_by_a_minute(
        self, provider: IdentityProvider, erin: User, skew_s: int, works: bool
    ) -> None:
        provider.set(skew_s=skew_s)
        client = Client()
        response = provider.sign_in(client)
        assert (signed_in(client) == "erin") is works
        if not works:
            assert "differ by more than a minute" in said(response)

    def test_a_person_who_cancels_returns_to_the_login(self, provider: IdentityProvider) -> None:
        provider.set(account=None)
        assert "was canceled" in said(provider.sign_in(Client()))

    @pytest.mark.parametrize(("account", "text"), [(None, "was canceled"), ("erin", "to link it")])
    def test_who_fails_once_still_gets_where_they_wanted_to_go(
        self, provider: IdentityProvider, admin: User, account: str | None, text: str
    ) -> None:
        provider.set(account=account)
        client = Client()
        refused = provider.sign_in(client, next="/help?q=a")
        assert text in said(refused)
        assert refused["Location"] == "/login?next=%2Fhelp%3Fq%3Da"
        factories.user("erin")
        identity_link(user=admin, username="erin", subject="erin")
        provider.set(account="erin")
        link = re.search(r'href="/login/sso\?next=([^"]*)"', markup(client.get(refused["Location"])))
        assert link
        assert provider.sign_in(client, next=unquote(link[1]))["Location"] == "/help?q=a"
        provider.set(account=None)
        foreign = provider.sign_in(Client(), next="https://evil.example/")
        assert foreign["Location"] == "/login", "an address of another site is not kept"

    def test_a_return_counts_once_and_only_in_the_browser_that_started(
        self, provider: IdentityProvider, erin: User
    ) -> None:
        client = Client()
        back = urlsplit(provider.authorize(client.get("/login/sso")["Location"]))
        address = f"{back.path}?{back.query}"
        assert "another browser" in said(Client().get(address))
        assert client.get(address)["Location"] == "/"
        client.logout()
        assert "another browser" in said(client.get(address))
        assert "another browser" in said(client.get("/login/sso/callback"))

    def test_a_nonce_of_another_login_is_refused(
        self, provider: IdentityProvider, erin: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = Client()
        address = client.get("/login/sso")["Location"]
        nonce = parse_qs(urlsplit(address).query)["nonce"][0]
        back = urlsplit(provider.authorize(address.replace(nonce, "stolen")))
        assert "did not confirm" in said(client.get(f"{back.path}?{back.query}"))
        assert signed_in(client) is None

    def test_an_issuer_that_names_itself_otherwise_is_refused(
        self, provider: IdentityProvider, settings: LazySettings
    ) -> None:
        settings.LUTHIER_OIDC_ISSUER = "https://login.example.org"
        assert "did not confirm" in said(Client().get("/login/sso"))


class TestAProviderThatIsDown:
    @pytest.fixture
    def down(self, provider: IdentityProvider, settings: LazySettings) -> None:
        apps = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"]
        apps[0]["settings"]["server_url"] = "http://127.0.0.1:9"

    def test_the_login_page_says_so_and_passwords_work(self, down: None, alice: User) -> None:
        client = Client()
        assert client.get("/login").status_code == 200
        refused = client.get("/login/sso", {"next": "/help"})
        assert refused["Location"] == "/login?next=%2Fhelp"
        page = markup(client.get(refused["Location"]))
        assert "Example ID does not respond. Try again, or sign in with your password." in page
        assert "Your session ended" not in page
        done = client.post("/login", {"username": "alice", "password": factories.PASSWORD, "next": "/help"})
        assert done["Location"] == "/help"

    def test_it_may_go_down_while_a_person_is_there(
        self, provider: IdentityProvider, settings: LazySettings, erin: User
    ) -> None:
        client = Client()
        back = urlsplit(provider.authorize(client.get("/login/sso")["Location"]))
        apps = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"]
        apps[0]["settings"]["server_url"] = "http://127.0.0.1:9"
        assert "does not respond" in said(client.get(f"{back.path}?{back.query}"))

    def test_one_that_hangs_takes_few_threads(
        self,
        provider: IdentityProvider,
    ) -> None:
        taken = [single_sign_on._free.acquire() for _ in range(single_sign_on.AT_ONCE)]
        try:
            assert "responds slowly" in said(Client().get("/login/sso"))
        finally:
            for _ in taken:
                single_sign_on._free.release()
        assert "does not" not in Client().get("/login/sso")["Location"]


def test_the_doctor_reads_the_provider_and_names_the_setting(
    provider: IdentityProvider, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = diagnosis.single_sign_on()
    assert (found.reason, found.warnings, found.found) == ("", (), provider.issuer)
    settings.LUTHIER_OIDC_ISSUER = f"{provider.issuer}/"
    found = diagnosis.single_sign_on()
    assert found.reason.endswith(f"names another issuer: {provider.issuer}")
    assert "LUTHIER_OIDC_ISSUER" in found.remedy
    settings.LUTHIER_OIDC_ISSUER = "http://127.0.0.1:9"
    assert "127.0.0.1:9" in diagnosis.single_sign_on().reason
    assert diagnosis.single_sign_on().remedy.startswith("Passwords work meanwhile.")
    settings.LUTHIER_PASSWORD_SIGN_IN = False
    assert diagnosis.single_sign_on().remedy.startswith("One-time passwords work meanwhile.")
    for methods in ("null", "7", "{}"):
        document = f'{{"issuer": "http://127.0.0.1:9", "code_challenge_methods_supported": {methods}}}'
        answer = BytesIO(document.encode())
        monkeypatch.setattr(diagnosis, "urlopen", lambda *_, answer=answer, **__: answer)
        assert "PKCE" in diagnosis.single_sign_on().warnings[0]
    settings.LUTHIER_OIDC_ISSUER = None
    assert diagnosis.single_sign_on().reason == ""


def test_an_address_has_a_budget(provider: IdentityProvider) -> None:
    statuses = [Client().get("/login/sso/callback").status_code for _ in range(pages.TRIES_A_MINUTE + 1)]
    assert statuses == [302] * pages.TRIES_A_MINUTE + [429]
    assert Client().get("/login/sso").status_code == 429
    assert Client(REMOTE_ADDR="10.0.0.8").get("/login/sso").status_code == 302


def test_neither_log_nor_page_repeats_code_token_or_secret(
    provider: IdentityProvider, erin: User, caplog: pytest.LogCaptureFixture, settings: LazySettings
) -> None:
    client = Client()
    back = urlsplit(provider.authorize(client.get("/login/sso")["Location"]))
    code = parse_qs(back.query)["code"][0]
    settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"][0]["secret"] = "the-wrong-secret"
    text = said(client.get(f"{back.path}?{back.query}"))
    assert "did not confirm" in text
    everything = text + " ".join(str(record.__dict__) for record in caplog.records)
    assert "the provider did not exchange the code" in everything
    assert code not in everything
    assert "the-wrong-secret" not in everything


def forge(token: str, how: str) -> str:
    """The claims of a token in another one."""
    header = jwt.get_unverified_header(token)
    claims = jwt.decode(token, options={"verify_signature": False})
    if how == "unsigned":
        return jwt.encode(claims, None, algorithm="none", headers={"kid": header["kid"]})
    if how == "shared secret":
        return jwt.encode(claims, CLIENT_SECRET, algorithm="HS256", headers={"kid": header["kid"]})
    if how == "empty":
        return ""
    kid = "unknown" if how == "unknown key" else header["kid"]
    changed = {
        "audience": {"aud": "other"},
        "issuer": {"iss": "https://other.example"},
        "azp": {"azp": "other"},
    }
    return jwt.encode(claims | changed.get(how, {}), FOREIGN_KEY, algorithm="RS256", headers={"kid": kid})
