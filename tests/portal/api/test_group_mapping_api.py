"""The mapping of groups to roles by REST: replaced as a whole, previewed as on the page, refused with all faults."""

from __future__ import annotations

from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.conf import LazySettings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tenants.models import AuditEntry, GroupMapping, Membership, User
from tenants.services.groups import LINES_MAX, Effect
from tenants.services.identities import PROVIDER, Identity, identity_link, user_of
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

ISSUER = "https://id.example"
PATH, PREVIEW = "/group-mapping", "/group-mapping:preview"


@pytest.fixture(autouse=True)
def sso(settings: LazySettings) -> LazySettings:
    settings.LUTHIER_OIDC_ISSUER = ISSUER
    return settings


@pytest.fixture
def erin(people: People) -> User:
    """Who has signed in, in the groups ml and staff."""
    factories.user("erin")
    identity_link(user=people.admin, username="erin", subject="erin-there")
    return arrives("ml", "staff")


def arrives(*groups: str) -> User:
    return user_of(Identity(ISSUER, "erin-there", groups=groups))


def rule(tenant: str, role: str, group: str) -> dict[str, str]:
    return {"tenant": tenant, "role": role, "group": group}


def put(api: Api, body: Any) -> Any:
    """Replaces whatever is there."""
    return api.put(PATH, body, If_Match="*")


def wrong(answer: Any) -> list[tuple[str, str]]:
    assert answer.status_code == 400
    return [(each["path"], each["code"]) for each in answer.json()["errors"]]


def test_it_is_read_and_replaced_as_a_whole_and_audited(admin: Api, people: People) -> None:
    empty = admin.get(PATH)
    assert (empty.json()["rules"], empty.json()["etag"]) == ([], empty["ETag"])
    rules = [rule("vision-lab", "viewer", "all staff"), rule("nlp-research", "manager", "/nlp/leads")]
    done = admin.put(PATH, {"rules": rules}, If_Match=empty["ETag"])
    assert (done.status_code, done.json()["rules"]) == (200, [rules[1], rules[0]])
    assert admin.get(PATH).json() == done.json()
    assert admin.get(PATH)["ETag"] == done["ETag"]
    stale = admin.put(PATH, {"rules": []}, If_Match=empty["ETag"])
    assert (stale.status_code, stale.json()["etag"]) == (412, done["ETag"])
    assert put(admin, {"rules": rules}).status_code == 200
    assert put(admin, {"rules": rules[:1]}).json()["rules"] == rules[:1]
    entries = AuditEntry.objects.filter(action="groups.change").order_by("pk")
    assert [(each.actor, each.address, each.details) for each in entries] == [
        (
            people.admin,
            "127.0.0.1",
            {"added": ["nlp-research manager /nlp/leads", "vision-lab viewer all staff"], "removed": []},
        ),
        (people.admin, "127.0.0.1", {"added": [], "removed": ["nlp-research manager /nlp/leads"]}),
    ], "what changed nothing left no entry"


def test_without_the_version_that_was_read_it_is_not_replaced(admin: Api, people: People) -> None:
    put(admin, {"rules": [rule("vision-lab", "viewer", "ml")]})
    answer = admin.put(PATH, {"rules": []})
    assert (answer.status_code, answer.json()["code"]) == (428, "version_required")
    assert admin.put(PATH, {"rules": []}, If_Match='"stale"').status_code == 412
    assert admin.put(PATH, {"rules": []}, If_Match="").status_code == 412
    assert GroupMapping.objects.count() == 1


def test_all_that_is_wrong_is_named_at_once_and_nothing_is_changed(admin: Api, people: People) -> None:
    rules = [
        rule("no-such", "boss", "ml"),
        rule("vision-lab", "viewer", "ml"),
        rule("vision-lab", "manager", "ml"),
        rule("vision-lab", "viewer", ""),
        rule("vision-lab", "viewer", " ml"),
        rule("vision-lab", "viewer", "x" * 201),
        rule("vision-lab", "viewer", "a\u2028b"),
        rule("", "", "ml"),
    ]
    expected = [
        ("rules[0].tenant", "tenant_not_found"),
        ("rules[0].role", "invalid_choice"),
        ("rules[2].group", "repeated"),
        *[(f"rules[{n}].group", "bad_group") for n in (3, 4, 5, 6)],
        ("rules[7].tenant", "tenant_not_found"),
        ("rules[7].role", "invalid_choice"),
    ]
    for answer in (put(admin, {"rules": rules}), admin.post(PREVIEW, {"rules": rules})):
        assert wrong(answer) == expected
    assert answer.json()["errors"][1]["allowed"] == ["viewer", "researcher", "manager"]
    assert not GroupMapping.objects.exists()


def test_wrong_types_missing_parts_and_too_many_rules_are_refused(admin: Api, people: People) -> None:
    good = rule("vision-lab", "viewer", "ml")
    assert wrong(put(admin, {})) == [("rules", "required")]
    assert wrong(put(admin, {"rules": [{"tenant": 7, "rol": "viewer"}]})) == [
        ("rules[0].rol", "unknown_field"),
        ("rules[0].tenant", "invalid"),
        ("rules[0].role", "required"),
        ("rules[0].group", "required"),
    ]
    many = [good | {"group": f"g{n}"} for n in range(LINES_MAX + 1)]
    assert wrong(put(admin, {"rules": many})) == [("rules", "too_many")]
    assert put(admin, {"rules": many[:-1]}).status_code == 200
    assert GroupMapping.objects.count() == LINES_MAX


def test_the_preview_is_what_the_page_shows_and_the_next_sign_in_does(
    admin: Api, people: People, erin: User
) -> None:
    put(admin, {"rules": [rule("vision-lab", "researcher", "ml")]})
    arrives("ml", "staff")
    rules = [rule("vision-lab", "viewer", "staff"), rule("nlp-research", "manager", "ml")]
    etag = admin.get(PATH)["ETag"]
    shown = admin.post(PREVIEW, {"rules": rules}).json()["effects"]
    assert shown == [
        {"username": "erin", "tenant": "nlp-research", "before": None, "after": "manager"},
        {"username": "erin", "tenant": "vision-lab", "before": "researcher", "after": "viewer"},
    ]
    browser = Client()
    browser.force_login(people.admin)
    text = "\n".join(" ".join(each.values()) for each in rules)
    page = browser.post("/admin-console/groups", {"text": text, "etag": etag})
    assert page.context["effects"] == [Effect(**each) for each in shown]
    assert admin.get(PATH)["ETag"] == etag, "a preview changes nothing"
    admin.put(PATH, {"rules": rules}, If_Match=etag)
    assert admin.post(PREVIEW, {}).json()["effects"] == shown, "of the mapping as it is"
    arrives("ml", "staff")
    found = Membership.objects.filter(user=erin).order_by("tenant__slug")
    assert [row.role for row in found] == [each["after"] for each in shown]
    assert admin.post(PREVIEW, {}).json()["effects"] == []
    assert admin.post(PREVIEW, {"rules": []}).json()["effects"] == [
        each | {"before": each["after"], "after": None} for each in shown
    ]


def test_a_preview_asks_the_database_as_often_for_many_people_as_for_one(
    admin: Api, people: People, erin: User
) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as asked:
            shown = admin.post(PREVIEW, {"rules": [rule("vision-lab", "viewer", "ml")]})
        assert len(shown.json()["effects"]) == SocialAccount.objects.count()
        return len(asked)

    statements()  # what is read once only
    before = statements()
    for name in ("frank", "gina", "heidi"):
        identity = Identity(ISSUER, name, groups=("ml",))
        SocialAccount.objects.create(
            user=factories.user(name), provider=PROVIDER, uid=identity.uid, extra_data=identity.stored
        )
    assert statements() == before


def test_only_a_platform_admin_reads_previews_or_replaces_it(dave: Api, people: People) -> None:
    body = {"rules": [rule("vision-lab", "manager", "ml")]}
    for answer in (dave.get(PATH), dave.post(PREVIEW, body), put(dave, body), dave.put(PATH, body)):
        assert answer.status_code == 403
    assert not GroupMapping.objects.exists()


def test_without_a_provider_it_is_read_but_neither_previewed_nor_replaced(
    admin: Api, sso: LazySettings
) -> None:
    put(admin, {"rules": [rule("vision-lab", "viewer", "ml")]})
    sso.LUTHIER_OIDC_ISSUER = None
    assert len(admin.get(PATH).json()["rules"]) == 1
    for answer in (put(admin, {"rules": []}), admin.post(PREVIEW, {"rules": []})):
        assert (answer.status_code, answer.json()["code"]) == (409, "single_sign_on_off")
    assert GroupMapping.objects.count() == 1
