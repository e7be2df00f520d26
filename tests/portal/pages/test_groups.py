"""Groups at the identity provider: what a mapping gives and takes back, what it leaves alone, and its page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import Client

from tenants.errors import FieldsInvalid, VersionChanged
from tenants.models import AuditEntry, Membership, Tenant, Token, User
from tenants.roles import Role
from tenants.services import groups
from tenants.services.identities import Identity, identity_link, identity_unlink, user_of
from tenants.services.members import member_add, member_change
from tenants.tokens import token_create
from tests import factories
from tests.markup import markup

pytestmark = pytest.mark.django_db
ISSUER = "https://id.example"
SignIn = Callable[..., User]


@pytest.fixture
def erin(settings: LazySettings, admin: User) -> User:
    settings.LUTHIER_OIDC_ISSUER = ISSUER
    factories.user("erin")
    return identity_link(user=admin, username="erin", subject="erin")


@pytest.fixture
def arrives(erin: User) -> SignIn:
    """A sign-in of erin with these groups, as the provider states them."""

    def arrive(*names: Any, claim: Any = None) -> User:
        claims = {"iss": ISSUER, "sub": "erin", "groups": list(names) if claim is None else claim}
        return user_of(Identity.from_claims(claims))

    return arrive


def mapping(admin: User, *lines: str) -> None:
    before = groups.version(groups.rules(user=admin))
    groups.rules_set(user=admin, wanted=groups.read_rules("\n".join(lines)), if_match=frozenset({before}))


def roles(user: User) -> dict[str, tuple[str, str]]:
    rows = Membership.objects.filter(user=user).select_related("tenant")
    return {row.tenant.slug: (row.role, row.group) for row in rows}


def test_a_group_gives_the_highest_of_its_roles_and_takes_it_back(
    lab: Tenant, admin: User, erin: User, arrives: SignIn, signed_in: Callable[[User], Client]
) -> None:
    mapping(admin, "vision-lab viewer all staff", "vision-lab manager /ml/leads")
    arrives("all staff")
    assert roles(erin) == {"vision-lab": ("viewer", "all staff")}
    arrives("all staff", "/ml/leads")
    assert roles(erin) == {"vision-lab": ("manager", "/ml/leads")}
    assert "Given by the group /ml/leads" in markup(signed_in(erin).get("/t/vision-lab/members"))
    arrives("/ml/lead")
    assert roles(erin) == {}
    entries = AuditEntry.objects.filter(action__startswith="member.").order_by("pk")
    assert [(each.action, each.target, each.tenant) for each in entries] == [
        (f"member.{verb}", "erin", lab) for verb in ("add", "change", "remove")
    ]


def test_what_is_withdrawn_takes_its_tokens_along(
    lab: Tenant, admin: User, erin: User, arrives: SignIn
) -> None:
    mapping(admin, "vision-lab researcher ml")
    token_create(user=arrives("ml"), owner=erin, name="laptop", tenant=lab, role=Role.RESEARCHER)
    arrives()
    assert not Token.objects.exists()


@pytest.mark.parametrize("claim", [None, {}, 7, ["other"], [["ml"]], [None], "", "mlx"])
def test_a_claim_that_does_not_name_the_group_gives_nothing(
    lab: Tenant, admin: User, erin: User, arrives: SignIn, claim: Any
) -> None:
    mapping(admin, "vision-lab researcher ml")
    arrives("ml")
    arrives(claim={} if claim is None else claim)
    assert roles(erin) == {}


@pytest.mark.parametrize("overage", [{"_claim_names": {"groups": "src1"}}, {"hasgroups": True}])
def test_groups_that_are_too_many_to_state_change_nothing(
    lab: Tenant, admin: User, erin: User, arrives: SignIn, overage: dict[str, Any]
) -> None:
    """As Entra ID says it: the groups are still there, only not in the token."""
    mapping(admin, "vision-lab researcher ml")
    arrives("ml")
    user_of(Identity.from_claims({"iss": ISSUER, "sub": "erin"} | overage))
    assert roles(erin) == {"vision-lab": ("researcher", "ml")}
    assert groups.effects(user=admin, wanted=[]) == [
        groups.Effect("erin", "vision-lab", "researcher", None)
    ], "the preview still knows the groups of before"
    user_of(Identity.from_claims({"iss": ISSUER, "sub": "erin", "groups": []} | overage))
    assert roles(erin) == {}, "groups that are stated count"


def test_a_name_that_no_row_can_hold_is_no_group(erin: User, arrives: SignIn) -> None:
    arrives("a\0b", "\ud800", "ml")
    assert erin.socialaccount_set.get().extra_data["groups"] == ["ml"]


def test_who_is_unlinked_loses_what_groups_gave(
    lab: Tenant, admin: User, erin: User, arrives: SignIn
) -> None:
    mapping(admin, "vision-lab researcher ml")
    arrives("ml")
    identity_unlink(user=admin, username="erin")
    assert roles(erin) == {}


def test_memberships_by_hand_are_left_alone(
    lab: Tenant, dave: User, admin: User, erin: User, arrives: SignIn
) -> None:
    Membership.objects.create(user=erin, tenant=lab, role=Role.RESEARCHER)
    mapping(admin, "vision-lab manager ml")
    arrives("ml")
    arrives()
    assert roles(erin) == {"vision-lab": ("researcher", "")}


def test_a_role_that_a_manager_changes_is_by_hand_from_then_on(
    lab: Tenant, dave: User, admin: User, erin: User, arrives: SignIn
) -> None:
    mapping(admin, "vision-lab researcher ml")
    arrives("ml")
    member_change(user=dave, tenant=lab, username="erin", role=Role.VIEWER)
    arrives("ml")
    arrives()
    assert roles(erin) == {"vision-lab": ("viewer", "")}


def test_a_role_that_a_manager_confirms_stays_without_the_group(
    lab: Tenant, dave: User, admin: User, erin: User, arrives: SignIn
) -> None:
    mapping(admin, "vision-lab researcher ml")
    arrives("ml")
    member_change(user=dave, tenant=lab, username="erin", role=Role.RESEARCHER)
    arrives()
    assert roles(erin) == {"vision-lab": ("researcher", "")}
    last = AuditEntry.objects.filter(action="member.change").latest("pk")
    assert (last.actor, last.details) == (dave, {"from": "researcher", "to": "researcher"})


@pytest.mark.parametrize("there", [False, True])
def test_what_a_manager_does_while_a_person_signs_in_is_left_alone(
    lab: Tenant,
    dave: User,
    admin: User,
    erin: User,
    arrives: SignIn,
    monkeypatch: pytest.MonkeyPatch,
    there: bool,
) -> None:
    """The manager comes between the look at what is due and the lock; with an add, even after the lock."""
    mapping(admin, "vision-lab researcher ml")
    if there:
        arrives("ml")
        mapping(admin, "vision-lab manager ml")
    changes, looks = groups._changes, []

    def meanwhile(*args: Any) -> Any:
        due = list(changes(*args))
        looks.append(due)
        if there and len(looks) == 1:
            member_change(user=dave, tenant=lab, username="erin", role=Role.VIEWER)
        elif not there and len(looks) == 2:
            member_add(user=dave, tenant=lab, username="erin", role=Role.VIEWER)
        return due

    monkeypatch.setattr(groups, "_changes", meanwhile)
    arrives("ml")
    assert roles(erin) == {"vision-lab": ("viewer", "")}


def test_the_dialog_says_that_a_group_brings_a_member_back(
    lab: Tenant, dave: User, admin: User, arrives: SignIn, signed_in: Callable[[User], Client]
) -> None:
    mapping(admin, "vision-lab researcher ml")
    arrives("ml")
    assert "comes back with the next sign-in" in markup(signed_in(dave).get("/t/vision-lab/members"))


def test_the_preview_is_what_the_next_sign_in_does(
    lab: Tenant, admin: User, erin: User, arrives: SignIn
) -> None:
    mapping(admin, "vision-lab researcher ml")
    arrives("ml", "staff")
    for line, after in (("vision-lab viewer staff", "viewer"), ("vision-lab viewer other", None)):
        before = roles(erin)["vision-lab"][0]
        shown = groups.effects(user=admin, wanted=groups.read_rules(line))
        assert shown == [groups.Effect("erin", "vision-lab", before, after)]
        assert roles(erin)["vision-lab"][0] == before, "a preview changes nothing"
        mapping(admin, line)
        arrives("ml", "staff")
        assert roles(erin).get("vision-lab", (None,))[0] == after


def test_all_wrong_lines_are_named_at_once(lab: Tenant) -> None:
    text = "vision-lab boss ml\n\nno-such-lab viewer ml\nvision-lab viewer\nvision-lab viewer a\nvision-lab manager a"
    with pytest.raises(FieldsInvalid) as refused:
        groups.read_rules(text)
    found = [each["message"] for each in refused.value.details["errors"]]
    assert [message.partition(":")[0] for message in found] == ["line 1", "line 3", "line 4", "line 6"]


def test_two_admins_do_not_overwrite_each_other(lab: Tenant, admin: User, erin: User) -> None:
    seen = groups.version([])
    mapping(admin, "vision-lab viewer a")
    with pytest.raises(VersionChanged):
        groups.rules_set(user=admin, wanted=[], if_match=frozenset({seen}))


def test_the_page_previews_and_saves(
    lab: Tenant, admin: User, arrives: SignIn, signed_in: Callable[[User], Client]
) -> None:
    arrives("ml")
    client, page = signed_in(admin), "/admin-console/groups"
    etag = client.get(page).context["etag"]
    refused = client.post(page, {"text": "nowhere viewer ml", "etag": etag})
    assert refused.status_code == 422
    assert "there is no tenant nowhere" in markup(refused)
    previewed = client.post(page, {"text": "vision-lab viewer ml", "etag": etag})
    assert "becomes viewer in vision-lab" in markup(previewed)
    assert groups.rules(user=admin) == []
    client.post(page, {"text": "vision-lab viewer ml", "etag": etag, "save": "yes"})
    assert [rule.line for rule in groups.rules(user=admin)] == ["vision-lab viewer ml"]
    stale = client.post(page, {"text": "", "etag": etag, "save": "yes"})
    assert stale.status_code == 422
    entry = AuditEntry.objects.get(action="groups.change")
    assert (entry.actor, entry.details) == (admin, {"added": ["vision-lab viewer ml"], "removed": []})


@pytest.mark.parametrize("sent", [{}, {"save": "yes"}])
def test_a_form_that_another_admin_was_faster_than_keeps_its_lines_and_shows_theirs(
    lab: Tenant, admin: User, erin: User, signed_in: Callable[[User], Client], sent: dict[str, str]
) -> None:
    client, page = signed_in(admin), "/admin-console/groups"
    typed = {"text": "vision-lab viewer mine", "etag": client.get(page).context["etag"], **sent}
    mapping(admin, "vision-lab manager theirs")
    answer = client.post(page, typed)
    assert answer.status_code == 422
    assert answer.context["text"] == typed["text"]
    assert "vision-lab manager theirs" in markup(answer)
    assert not answer.context["previewed"], "no save before the admin has seen it"
    assert client.post(page, typed | {"etag": ""}).status_code == 422, "a form without a version"
    assert [rule.line for rule in groups.rules(user=admin)] == ["vision-lab manager theirs"]
    seen = {"text": typed["text"], "etag": answer.context["etag"], "save": "yes"}
    assert client.post(page, seen).status_code == 302
    assert [rule.line for rule in groups.rules(user=admin)] == ["vision-lab viewer mine"]
