"""A token shows its secret once, carries no more than its owner and its bounds, and is revoked at once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.utils import timezone

from jobs.models import IdempotentResponse
from portal.api.auth import WRONG_TOKENS_A_MINUTE
from tenants.models import AuditEntry, Membership, Token, User
from tenants.services.users import RESET_NOTED, preference_set
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api


def test_me_names_tenants_with_role_and_permissions(alice: Api) -> None:
    me = alice.get("/me").json()
    assert me["username"] == "alice"
    assert me["tenants"] == [
        {
            "slug": "vision-lab",
            "name": "Vision-Lab",
            "state": "active",
            "role": "researcher",
            "permissions": ["submit", "view"],
        }
    ]


def test_shortcuts_are_turned_off_for_the_pages_and_nothing_else_changes(alice: Api, people: People) -> None:
    path = "/me/preferences"
    assert alice.get(path).json() == {"shortcuts": True}
    noted = {RESET_NOTED: "2026-11-21T09:00:00+00:00"}
    User.objects.filter(pk=people.alice.pk).update(preferences=noted)
    assert alice.patch(path, {"shortcuts": False}).json() == {"shortcuts": False}
    people.alice.refresh_from_db()
    assert people.alice.preferences == noted | {"shortcuts": False}
    assert alice.get(path).json() == {"shortcuts": False}
    for wrong in (
        {},
        {"shortcuts": "no"},
        {"shortcuts": 0},
        {"shortcuts": None},
        {"theme": "dark", "shortcuts": True},
    ):
        answer = alice.patch(path, wrong)
        assert (answer.status_code, len(answer.json()["errors"])) == (400, 1)
    limited = Api(secret=alice.post("/me/tokens", {"name": "ci", "role": "viewer"}).json()["secret"])
    assert limited.patch(path, {"shortcuts": True}).status_code == 403
    assert limited.get(path).json() == {"shortcuts": False}


def test_preferences_that_change_at_the_same_time_are_both_kept(people: People) -> None:
    earlier = User.objects.get(pk=people.alice.pk)
    preference_set(people.alice, "shortcuts", False)
    preference_set(earlier, "other", 1)
    people.alice.refresh_from_db()
    assert people.alice.preferences == {"shortcuts": False, "other": 1}


def test_a_secret_is_shown_once_and_is_valid(alice: Api) -> None:
    made = alice.post("/me/tokens", {"name": "laptop"})
    assert made.status_code == 201
    secret = made.json()["secret"]
    assert secret.startswith("lut_")
    assert Api(secret=secret).get("/me").json()["username"] == "alice"
    listed = alice.get("/me/tokens")
    assert secret not in listed.content.decode()
    assert {"laptop", "test"} == {item["name"] for item in listed.json()["items"]}
    (laptop,) = (item for item in listed.json()["items"] if item["name"] == "laptop")
    assert laptop["prefix"] == secret[:8]


def test_a_revoked_token_opens_nothing(alice: Api) -> None:
    made = alice.post("/me/tokens", {"name": "laptop"}).json()
    assert alice.delete(f"/me/tokens/{made['id']}").status_code == 204
    answer = Api(secret=made["secret"]).get("/me")
    assert answer.status_code == 401
    assert answer.json()["code"] == "token_invalid"
    assert answer["WWW-Authenticate"].startswith("Bearer")


def test_an_expired_token_opens_nothing(alice: Api, people: People) -> None:
    made = alice.post("/me/tokens", {"name": "old"}).json()
    Token.objects.filter(name="old").update(expiry=timezone.now() - timedelta(seconds=1))
    assert Api(secret=made["secret"]).get("/me").status_code == 401


def test_a_token_of_a_deactivated_user_is_refused(alice: Api, people: People) -> None:
    people.alice.is_active = False
    people.alice.save()
    assert alice.get("/me").status_code == 401


def test_a_foreign_token_cannot_be_revoked(alice: Api, bob: Api) -> None:
    made = alice.post("/me/tokens", {"name": "laptop"}).json()
    assert bob.delete(f"/me/tokens/{made['id']}").status_code == 404
    assert Api(secret=made["secret"]).get("/me").status_code == 200


def test_a_weak_token_does_not_end_a_stronger_one_but_itself(dave: Api) -> None:
    strong = dave.post("/me/tokens", {"name": "strong"}).json()
    peer = dave.post("/me/tokens", {"name": "peer", "role": "viewer"}).json()
    weak = dave.post("/me/tokens", {"name": "weak", "role": "viewer"}).json()
    caller = Api(secret=weak["secret"])
    refused = caller.delete(f"/me/tokens/{strong['id']}")
    assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed")
    assert "viewer" in refused.json()["detail"]
    assert Api(secret=strong["secret"]).get("/me").status_code == 200
    assert caller.delete(f"/me/tokens/{peer['id']}").status_code == 204
    assert caller.delete(f"/me/tokens/{weak['id']}").status_code == 204
    assert caller.get("/me").status_code == 401


def test_a_bound_token_ends_no_token_of_other_bounds(dave: Api, people: People) -> None:
    Membership.objects.create(user=people.dave, tenant=people.nlp, role="manager")
    requested = {"free": None, "elsewhere": "nlp-research", "here": "vision-lab", "caller": "vision-lab"}
    made = {
        name: dave.post("/me/tokens", {"name": name, "tenant": slug}).json()
        for name, slug in requested.items()
    }
    caller = Api(secret=made["caller"]["secret"])
    answered = {name: caller.delete(f"/me/tokens/{made[name]['id']}").status_code for name in made}
    assert answered == {"free": 403, "elsewhere": 403, "here": 204, "caller": 204}
    assert dave.delete(f"/me/tokens/{made['elsewhere']['id']}").status_code == 204


def test_a_token_may_be_bound_to_a_lower_role(dave: Api) -> None:
    secret = dave.post("/me/tokens", {"name": "looker", "role": "viewer"}).json()["secret"]
    looker = Api(secret=secret)
    assert looker.get("/me").json()["tenants"][0]["role"] == "viewer"
    assert (
        looker.post("/tenants/vision-lab/members", {"username": "bob", "role": "viewer"}).status_code == 403
    )


def test_a_bound_token_makes_no_stronger_one(dave: Api) -> None:
    body = {"name": "weak", "role": "viewer", "tenant": "vision-lab", "expires_in_days": 5}
    weak = Api(secret=dave.post("/me/tokens", body).json()["secret"])
    answer = weak.post("/me/tokens", {"name": "strong", "role": "manager", "expires_in_days": 90})
    assert answer.status_code == 400
    assert {error["path"] for error in answer.json()["errors"]} == {"role", "expires_in_days"}


def test_what_is_left_open_is_taken_from_the_token_one_came_with(dave: Api) -> None:
    first = {"name": "a week", "tenant": "vision-lab", "role": "viewer", "expires_in_days": 7}
    week = dave.post("/me/tokens", first).json()
    second = Api(secret=week["secret"]).post("/me/tokens", {"name": "from it"})
    assert second.status_code == 201, second.json()
    made = second.json()
    assert (made["tenant"], made["role"]) == ("vision-lab", "viewer")
    assert made["expires_at"][:16] <= week["expires_at"][:16]


def test_a_token_is_bound_to_its_own_tenants_only(alice: Api) -> None:
    answer = alice.post("/me/tokens", {"name": "x", "tenant": "nlp-research"})
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["path"] == "tenant"


def test_a_repeated_request_makes_one_token_and_keeps_no_secret(alice: Api) -> None:
    first = alice.post("/me/tokens", {"name": "ci"}, Idempotency_Key="k1").json()
    again = alice.post("/me/tokens", {"name": "ci"}, Idempotency_Key="k1").json()
    assert again == first | {"secret": None}
    assert Token.objects.filter(name="ci").count() == 1
    assert first["secret"] not in str(list(IdempotentResponse.objects.values()))


def test_making_a_token_leaves_an_audit_row(alice: Api, people: People) -> None:
    alice.post("/me/tokens", {"name": "ci", "tenant": "vision-lab"}, X_Request_ID="req-1")
    entry = AuditEntry.objects.get(action="token.create")
    assert (entry.actor, entry.tenant, entry.request_id) == (people.alice, people.vision, "req-1")


def test_guessing_tokens_is_slowed_down(anybody: Api) -> None:
    guesser = Api(secret="lut_" + "0" * 60)
    answers = [guesser.get("/me").status_code for _ in range(61)]
    assert answers[0] == 401
    assert answers[-1] == 429


def test_making_tokens_in_a_loop_is_slowed_down(alice: Api) -> None:
    answers = [alice.post("/me/tokens", {"name": "x"}) for _ in range(31)]
    assert answers[-1].status_code == 429
    assert int(answers[-1]["Retry-After"]) > 0


def test_valid_tokens_are_served_while_invalid_ones_come_from_the_same_address(alice: Api) -> None:
    guesser = Api(secret="lut_" + "0" * 60)
    guessed, served = [], []
    for _ in range(100):
        guessed.append(guesser.get("/me").status_code)
        served.append(alice.get("/me").status_code)
    assert served == [200] * 100
    assert guessed == [401] * WRONG_TOKENS_A_MINUTE + [429] * (100 - WRONG_TOKENS_A_MINUTE)


def test_valid_tokens_are_served_without_valkey(
    alice: Api, settings: LazySettings, fresh_budgets: None, caplog: pytest.LogCaptureFixture
) -> None:
    shared = {"BACKEND": "portal.counting_cache.CountingCache", "LOCATION": "redis://127.0.0.1:9"}
    settings.CACHES = {"default": settings.CACHES["default"], "shared": shared}
    guesser = Api(secret="lut_" + "0" * 60)
    guessed = [guesser.get("/me").status_code for _ in range(WRONG_TOKENS_A_MINUTE + 5)]
    assert guessed == [401] * WRONG_TOKENS_A_MINUTE + [429] * 5
    assert alice.get("/me").status_code == 200
    assert "no Valkey" in caplog.text
