"""The views of the list of jobs: tabs with counts, and the forms that save, change and choose them."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.http import HttpResponse
from django.utils import timezone

from jobs.models import Job
from jobs.states import State
from tenants.models import SavedView, Tenant, User
from tenants.services import views
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
LIST = "/t/vision-lab/jobs"


def tabs(page: str) -> dict[str, str]:
    """Title -> count."""
    shown = page.split('aria-label="Views">')[1].split("</nav>")[0]
    return dict(re.findall(r">([^<>]+?) ?<span class=\"count\" data-view=\"\w+\">([^<]*)<", shown))


def post(signed_in: SignIn, who: User, **data: str) -> HttpResponse:
    answer: HttpResponse = signed_in(who).post(f"{LIST}/views", data)
    return answer


def test_saving_is_offered_where_the_filters_are_those_of_no_view(alice: User, signed_in: SignIn) -> None:
    client = signed_in(alice)
    offered = [
        "Save view" in markup(client.get(f"{LIST}{query}")) for query in ("", "?owner=me", "?tag=sweep")
    ]
    assert offered == [False, False, True]
    assert "Save view" not in markup(client.get(f"{LIST}?state=NOPE&tag=sweep"))


def test_a_saved_view_is_a_tab_with_a_count_for_its_owner_alone(
    lab: Tenant, alice: User, dave: User, signed_in: SignIn
) -> None:
    for tags in (["sweep"], ["sweep"], ["other"]):
        factories.job(of=lab, owner=alice, tags=tags)
    saved = post(signed_in, alice, act="save", name="Sweeps", tag="sweep")
    assert (saved.status_code, saved["Location"]) == (302, f"{LIST}?tag=sweep")
    page = markup(signed_in(alice).get(saved["Location"]))
    assert tabs(page)["Sweeps"] == "2"
    row = SavedView.objects.get()
    assert f'<a href="?view=v{row.pk}&amp;tag=sweep" aria-current="page">Sweeps' in page
    assert "Save view" not in page.split("</nav>")[0]
    assert "Sweeps" not in tabs(markup(signed_in(dave).get(LIST)))
    changed = [markup(signed_in(alice).get(f"{LIST}?rows={more}")) for more in ("", "&saved")]
    assert [f'data-view="v{row.pk}"><td>2<' in each for each in changed] == [False, True]


def test_saving_under_the_name_of_an_own_view_replaces_its_filters(alice: User, signed_in: SignIn) -> None:
    for tag in ("sweep", "nightly"):
        post(signed_in, alice, act="save", name="Mine too", tag=tag)
    assert [row.filters for row in SavedView.objects.all()] == [{"tag": "nightly"}]


def test_saving_under_such_a_name_shares_the_view_if_asked(dave: User, signed_in: SignIn) -> None:
    post(signed_in, dave, act="save", name="Sweeps", tag="sweep")
    post(signed_in, dave, act="save", name="Sweeps", tag="nightly", shared="on")
    assert [(row.filters, row.shared) for row in SavedView.objects.all()] == [({"tag": "nightly"}, True)]


def shown_view(page: str) -> str:
    """The title of the current tab."""
    tab = page.split('aria-label="Views">')[1].split('aria-current="page"')[1]
    return re.findall(r'>([^<>]+?) ?<span class="count"', tab)[0]


def test_each_of_several_views_with_the_same_filters_can_be_opened(
    lab: Tenant, alice: User, dave: User, signed_in: SignIn
) -> None:
    same = {"tag": "sweep"}
    ours = views.view_create(user=dave, tenant=lab, name="Ours", filters=same, shared=True)
    own = views.view_create(user=alice, tenant=lab, name="Own", filters=same)
    mine = views.view_create(user=alice, tenant=lab, name="Also mine", filters={"owner": "me"})
    client = signed_in(alice)
    for row, query in ((ours, "tag=sweep"), (own, "tag=sweep"), (mine, "owner=me")):
        page = markup(client.get(f"{LIST}?view=v{row.pk}&{query}"))
        assert shown_view(page) == row.name
        assert f'href="?view=v{row.pk}&amp;{query}" aria-current="page"' in page
        assert f'<input type="hidden" name="view" value="v{row.pk}">' in page  # actions on jobs return to it
    assert shown_view(markup(client.get(f"{LIST}?owner=me"))) == "Mine"
    renamed = post(signed_in, alice, act="rename", view=f"v{own.pk}", name="Renamed", tag="sweep")
    assert shown_view(markup(client.get(renamed["Location"]))) == "Renamed"
    other = markup(client.get(f"{LIST}?view=v{own.pk}&tag=other"))
    assert "Save view" in other  # its filters are no longer those of the view


def test_a_view_whose_filters_are_unknown_by_then_can_be_opened_and_deleted(
    lab: Tenant, alice: User, signed_in: SignIn
) -> None:
    row = views.view_create(user=alice, tenant=lab, name="Old", filters={"state": "GONE"})
    client = signed_in(alice)
    address = re.findall(r'href="(\?view=v\d+)"', markup(client.get(LIST)))
    assert address == [f"?view=v{row.pk}"]
    page = markup(client.get(f"{LIST}{address[0]}"))
    assert shown_view(page) == "Old"
    assert 'value="delete"' in page


def test_failed_24_h_leaves_out_what_failed_before(lab: Tenant, alice: User, signed_in: SignIn) -> None:
    for name, hours in (("new", 2), ("old", 30)):
        job = factories.job(of=lab, owner=alice, name=name, state=State.FAILED)
        Job.objects.filter(pk=job.pk).update(finished_at=timezone.now() - timedelta(hours=hours))
    page = markup(signed_in(alice).get(f"{LIST}?state=FAILED&ended=24h"))
    assert tabs(page)["Failed 24 h"] == "1"
    assert re.findall(r'class="name" title="(\w+)"', page) == ["new"]
    week = markup(signed_in(alice).get(f"{LIST}?state=FAILED&ended=7d"))
    assert sorted(re.findall(r'class="name" title="(\w+)"', week)) == ["new", "old"]
    assert "Unknown time of the end" in markup(signed_in(alice).get(f"{LIST}?ended=1y"))


def test_the_default_opens_an_address_without_filters_and_all_stays_reachable(
    alice: User, dave: User, signed_in: SignIn
) -> None:
    post(signed_in, alice, act="default", view="mine", owner="me")
    opened = signed_in(alice).get(LIST)
    assert (opened.status_code, opened["Location"]) == (302, "?owner=me")
    everything = signed_in(alice).get(f"{LIST}?view=all")
    assert everything.status_code == 200
    assert '<a href="?view=all" aria-current="page">All' in markup(everything)
    assert signed_in(dave).get(LIST).status_code == 200
    post(signed_in, alice, act="default", view="all")
    assert signed_in(alice).get(LIST).status_code == 200


def test_a_default_that_is_gone_opens_the_list(alice: User, signed_in: SignIn) -> None:
    post(signed_in, alice, act="save", name="Sweeps", tag="sweep")
    key = f"v{SavedView.objects.get().pk}"
    post(signed_in, alice, act="default", view=key, tag="sweep")
    assert signed_in(alice).get(LIST)["Location"] == f"?view={key}&tag=sweep"
    assert post(signed_in, alice, act="delete", view=key)["Location"] == f"{LIST}?view=all"
    assert signed_in(alice).get(LIST).status_code == 200


def test_a_manager_shares_renames_and_deletes_a_view_and_others_cannot(
    lab: Tenant, alice: User, dave: User, carol: User, signed_in: SignIn
) -> None:
    row = views.view_create(user=dave, tenant=lab, name="Sweeps", filters={"tag": "sweep"})
    key = f"v{row.pk}"
    assert post(signed_in, alice, act="rename", view=key, name="x").status_code == 404  # it is dave's own
    post(signed_in, dave, act="share", view=key)
    shown = markup(signed_in(carol).get(f"{LIST}?tag=sweep"))
    assert "Shared with everyone in vision-lab by dave" in re.sub(lab.name, "vision-lab", shown)
    assert 'value="rename"' not in shown
    for act in ("rename", "unshare", "delete"):
        assert post(signed_in, carol, act=act, view=key, name="x").status_code == 403
    assert 'value="rename"' in markup(signed_in(dave).get(f"{LIST}?tag=sweep"))
    post(signed_in, dave, act="rename", view=key, name="All sweeps")
    assert "All sweeps" in tabs(markup(signed_in(carol).get(LIST)))
    post(signed_in, dave, act="unshare", view=key)
    assert "All sweeps" not in tabs(markup(signed_in(carol).get(LIST)))


def test_what_is_wrong_is_said_and_what_is_unknown_is_not_found(alice: User, signed_in: SignIn) -> None:
    client = signed_in(alice)
    said = client.post(f"{LIST}/views", {"act": "save", "name": " ", "tag": "sweep"}, follow=True)
    assert "Name: must not be empty." in markup(said)
    for data in ({"act": "nonsense"}, {"act": "delete", "view": "x"}, {"act": "default", "view": "v999"}):
        assert client.post(f"{LIST}/views", data).status_code == 404
