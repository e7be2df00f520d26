"""The pages of secrets: managers set a tenant's, everyone their own, and no page ever shows a value."""

from __future__ import annotations

import re

import pytest

from jobs.models import Job, Runtime
from jobs.spec import to_yaml
from tenants.models import Secret, Tenant, User
from tenants.services.secrets import secret_set, values_for
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db

VALUE = "page-secret-value"
HERE = "/t/vision-lab/secrets"


def test_a_manager_sets_and_deletes_a_tenants_secret(signed_in: SignIn, lab: Tenant, dave: User) -> None:
    client = signed_in(dave)
    page = markup(client.post(f"{HERE}/set", {"name": "wandb", "value": f" {VALUE}\r\n"}, follow=True))
    assert "Secret wandb is set" in page
    assert VALUE not in page
    assert values_for(owner=dave, tenant=lab, names=["wandb"]) == {"wandb": VALUE}, (
        "without what came with it"
    )
    assert "Secret wandb is deleted" in markup(client.post(f"{HERE}/delete", {"name": "wandb"}, follow=True))
    assert not Secret.objects.exists()


def test_a_tenants_page_leads_researchers_to_their_own(
    signed_in: SignIn, lab: Tenant, alice: User, dave: User
) -> None:
    mine = 'href="/me/secrets"'
    managers = f"Those of {lab.name} are set by its managers."
    page = markup(signed_in(alice).get(HERE))
    assert mine in page
    assert managers in page
    page = markup(signed_in(dave).get(HERE))
    assert mine in page
    assert managers not in page
    assert "Those of" not in markup(signed_in(dave).get("/me/secrets"))


def test_a_value_with_several_lines_is_kept_as_it_is(signed_in: SignIn, lab: Tenant, dave: User) -> None:
    signed_in(dave).post(f"{HERE}/set", {"name": "pem", "value": "first line\r\nsecond line\r\n"})
    assert values_for(owner=dave, tenant=lab, names=["pem"]) == {"pem": "first line\nsecond line\n"}


@pytest.mark.parametrize("data", [{"name": "-bad-", "value": VALUE}, {"name": "ok", "value": "123ab"}])
def test_a_refused_form_keeps_the_name_and_never_the_value(
    signed_in: SignIn, dave: User, data: dict[str, str]
) -> None:
    answer = signed_in(dave).post(f"{HERE}/set", data)
    page = markup(answer)
    assert answer.status_code == 422
    assert f'value="{data["name"]}"' in page
    assert data["value"] not in page
    assert "no-store" in answer["Cache-Control"]
    assert not Secret.objects.exists()


def test_no_field_offers_to_remember_a_value(signed_in: SignIn, dave: User) -> None:
    page = markup(signed_in(dave).get(HERE))
    field = re.search(r"<textarea[^>]*name=\"value\"[^>]*>(.*?)</textarea>", page, re.DOTALL)
    assert field
    assert 'autocomplete="off"' in field[0]
    assert field[1] == ""


def test_a_researcher_reads_the_names_and_a_viewer_nothing(
    signed_in: SignIn, lab: Tenant, alice: User, carol: User, dave: User
) -> None:
    secret_set(user=dave, tenant=lab, name="wandb", value=VALUE)
    job = factories.job(owner=alice)
    Job.objects.filter(pk=job.pk).update(spec=job.spec | {"secrets": {"KEY": "wandb"}})
    page = markup(signed_in(alice).get(HERE))
    assert ">wandb<" in page
    assert f'href="/t/vision-lab/jobs/{job.pk}"' in page
    assert "Set a secret" not in page
    assert VALUE not in page
    assert signed_in(alice).post(f"{HERE}/set", {"name": "wandb", "value": "other-value"}).status_code == 403
    assert signed_in(carol).get(HERE).status_code == 403
    assert f'href="{HERE}"' not in markup(signed_in(carol).get("/t/vision-lab/"))
    assert f'href="{HERE}"' in markup(signed_in(alice).get("/t/vision-lab/"))


def test_everyone_sets_their_own(signed_in: SignIn, lab: Tenant, alice: User, carol: User) -> None:
    client = signed_in(alice)
    page = markup(client.post("/me/secrets/set", {"name": "hf", "value": VALUE}, follow=True))
    assert ">hf<" in page
    assert VALUE not in page
    assert ">hf<" not in markup(signed_in(carol).get("/me/secrets"))
    assert 'href="/me/secrets"' in markup(client.get("/me"))
    client.post("/me/secrets/delete", {"name": "hf"})
    assert not Secret.objects.exists()


def test_submitting_a_literal_key_by_the_page_warns(signed_in: SignIn, lab: Tenant, alice: User) -> None:
    Runtime.objects.get_or_create(slug="sklearn", defaults={"title": "scikit-learn"})
    text = to_yaml(factories.spec(env={"WANDB_API_KEY": "0123456789abcdef"}))
    page = markup(signed_in(alice).post("/t/vision-lab/jobs/new", {"spec": text}, follow=True))
    assert Job.objects.count() == 1
    assert "env.WANDB_API_KEY looks like a key" in page


def test_every_delete_button_opens_a_dialog_that_is_there(signed_in: SignIn, lab: Tenant, dave: User) -> None:
    for name in ("one", "two"):
        secret_set(user=dave, tenant=lab, name=name, value=VALUE)
    page = markup(signed_in(dave).get(HERE))
    opened = set(re.findall(r'popovertarget="([^"]+)"', page))
    assert {"delete-1", "delete-2"} <= opened
    assert opened <= set(re.findall(r'id="([^"]+)"', page))
