"""Allowed images by REST: members see which count, platform admins replace them, all that is wrong is named at once."""

from __future__ import annotations

from typing import Any

from tenants.models import AuditEntry, Tenant
from tests.portal.api.conftest import Api

PATH = "/tenants/vision-lab/images"
REASON = {"reason": "They maintain these images"}


def test_without_patterns_of_its_own_a_tenant_follows_the_installation(carol: Api, settings: Any) -> None:
    assert carol.get(PATH).json() | {"etag": ""} == {"patterns": None, "applies": [], "etag": ""}
    settings.KUBE_ALLOWED_IMAGES = ("registry.example/**",)
    assert carol.get(PATH).json()["applies"] == ["registry.example/**"]


def test_patterns_are_replaced_as_a_whole_audited_and_not_if_they_changed_meanwhile(
    admin: Api, carol: Api
) -> None:
    seen = carol.get(PATH)
    patterns = ["registry.example/vision/**", "docker.io/library/python:3.*"]
    done = admin.put(PATH, {"patterns": [*patterns, patterns[0]], **REASON}, If_Match=seen["ETag"])
    assert (done.status_code, done.json()["patterns"], done.json()["applies"]) == (200, patterns, patterns)
    stale = admin.put(PATH, {"patterns": [], **REASON}, If_Match=seen["ETag"])
    assert (stale.status_code, stale.json()["etag"]) == (412, done["ETag"])
    assert admin.put(PATH, {"patterns": patterns, **REASON}).status_code == 200
    entry = AuditEntry.objects.get(action="images.change")
    assert entry.details == {"from": None, "to": patterns}, "the second request changed nothing"
    assert entry.reason == REASON["reason"]
    assert admin.put(PATH, {"patterns": None, **REASON}).json()["patterns"] is None


def test_wrong_patterns_change_nothing_and_are_all_named(admin: Api) -> None:
    answer = admin.put(PATH, {"patterns": ["python", "registry.example/a", "*.example/a"], **REASON})
    assert answer.status_code == 400
    wrong = {each["path"]: each["code"] for each in answer.json()["errors"]}
    assert wrong == {"patterns[0]": "bad_image_pattern", "patterns[2]": "bad_image_pattern"}
    assert Tenant.objects.get(slug="vision-lab").image_patterns is None


def test_too_many_patterns_are_refused(admin: Api) -> None:
    patterns = [f"registry.example/a{n}" for n in range(101)]
    answer = admin.put(PATH, {"patterns": patterns, **REASON})
    assert [each["code"] for each in answer.json()["errors"]] == ["too_many"]
