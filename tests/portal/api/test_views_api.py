"""Saved views by REST."""

from __future__ import annotations

from tenants.models import Membership, SavedView
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

VIEWS = "/tenants/vision-lab/views"
SWEEPS = {"name": "Sweeps", "filters": {"tag": "sweep", "ended": "24h"}}


def test_a_view_is_saved_changed_chosen_and_deleted(alice: Api) -> None:
    made = alice.post(VIEWS, SWEEPS)
    assert made.status_code == 201
    view = made.json()
    assert view == SWEEPS | {"id": view["id"], "shared": False, "owner": "alice", "is_default": False}
    assert alice.get(VIEWS).json()["items"] == [view]

    changed = alice.patch(f"{VIEWS}/{view['id']}", {"name": "All sweeps", "is_default": True}).json()
    assert (changed["name"], changed["is_default"], changed["filters"]) == (
        "All sweeps",
        True,
        SWEEPS["filters"],
    )
    assert alice.get(VIEWS).json()["items"] == [changed]
    assert alice.patch(f"{VIEWS}/{view['id']}", {"is_default": False}).json()["is_default"] is False

    assert alice.delete(f"{VIEWS}/{view['id']}").status_code == 204
    assert alice.get(VIEWS).json()["items"] == []


def test_all_that_is_wrong_is_listed_at_once(alice: Api) -> None:
    body = {"name": "", "filters": {"state": "BROKEN", "ended": "1y", "color": "red"}, "shared": "yes"}
    wrong = {each["path"] for each in alice.post(VIEWS, body).json()["errors"]}
    assert wrong == {"name", "filters.state", "filters.ended", "filters.color", "shared"}
    assert alice.post(VIEWS, SWEEPS | {"filters": {}}).json()["errors"][0]["path"] == "filters"
    assert not SavedView.objects.exists()


def test_a_taken_name_is_a_conflict(alice: Api) -> None:
    alice.post(VIEWS, SWEEPS)
    again = alice.post(VIEWS, SWEEPS)
    assert (again.status_code, again.json()["code"]) == (409, "name_taken")


def test_a_manager_shares_a_view_that_others_see_and_choose_and_do_not_change(
    people: People, alice: Api
) -> None:
    assert alice.post(VIEWS, SWEEPS | {"shared": True}).status_code == 403
    Membership.objects.filter(user=people.alice).update(role="manager")
    shared = alice.post(VIEWS, SWEEPS | {"shared": True}).json()
    carol = Api(people.carol)
    assert [each["id"] for each in carol.get(VIEWS).json()["items"]] == [shared["id"]]
    assert carol.patch(f"{VIEWS}/{shared['id']}", {"is_default": True}).json()["is_default"] is True
    assert carol.patch(f"{VIEWS}/{shared['id']}", {"name": "Theirs"}).status_code == 403
    assert alice.get(VIEWS).json()["items"][0]["is_default"] is False
