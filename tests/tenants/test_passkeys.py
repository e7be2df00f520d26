"""Passkeys: what is accepted of a device, how often, where, and what is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import IntegrityError, connection, transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenants import passkeys, two_factor
from tenants.errors import (
    FieldsInvalid,
    NotAllowed,
    NotFound,
    PasskeyCopied,
    PasskeyRefused,
    PasskeysUnavailable,
    TwoFactorRequired,
)
from tenants.models import AuditEntry, Passkey, PasskeyChallenge, RecoveryCode, User
from tenants.passkeys import Site
from tenants.services.users import user_two_factor_reset
from tests import factories
from tests.passkey_device import ORIGIN, Device

pytestmark = pytest.mark.django_db
SITE = Site(ORIGIN)
UNSIGNED = {"type", "transports", "clientExtensionResults"}
"""Parts of an answer that say nothing about who gave it."""


@pytest.fixture
def alice() -> User:
    return factories.user("alice")


def sign_in(user: User, device: Device, site: Site = SITE, **changes: Any) -> None:
    begun = passkeys.check_begin(user, site)
    passkeys.check(user, begun.challenge_id, site, device.get(begun.options, **changes))


def test_the_first_passkey_turns_two_factor_authentication_on_and_gives_recovery_codes(alice: User) -> None:
    device = factories.passkey(alice, name="  My\tlaptop ")
    assert two_factor.is_on(alice)
    assert len(set(device.codes)) == 10
    assert two_factor.check(alice, device.codes[0]) == two_factor.RECOVERY
    row = device.row
    assert (row.name, row.host, row.transports, row.last_used_at) == ("My laptop", "localhost", ["usb"], None)
    second = factories.passkey(alice)
    assert (second.codes, second.row.name) == ([], "Passkey 1"), "earlier codes stay"
    assert two_factor.factors_of(alice).codes_left == 9
    recorded = AuditEntry.objects.order_by("id").values_list("action", "details")
    assert list(recorded) == [
        ("passkey.add", {"passkey": "My laptop"}),
        ("two_factor.enable", {"by": "passkey"}),
        ("passkey.add", {"passkey": "Passkey 1"}),
    ]


def test_a_passkey_signs_in_and_its_use_is_kept(alice: User) -> None:
    device = factories.passkey(alice)
    sign_in(alice, device)
    sign_in(alice, device)
    row = Passkey.objects.get()
    assert row.sign_count == 2
    assert row.last_used_at is not None


def test_a_challenge_is_answered_once_also_after_a_wrong_answer(alice: User) -> None:
    device = factories.passkey(alice)
    device.count = None  # so that only the challenge is in the way
    begun = passkeys.check_begin(alice, SITE)
    answer = device.get(begun.options)
    passkeys.check(alice, begun.challenge_id, SITE, answer)
    with pytest.raises(PasskeyRefused, match="done before"):
        passkeys.check(alice, begun.challenge_id, SITE, answer)
    begun = passkeys.check_begin(alice, SITE)
    with pytest.raises(PasskeyRefused):
        passkeys.check(alice, begun.challenge_id, SITE, "{}")
    with pytest.raises(PasskeyRefused, match="done before"):
        passkeys.check(alice, begun.challenge_id, SITE, device.get(begun.options))
    assert not PasskeyChallenge.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_of_simultaneous_answers_to_a_challenge_one_counts(alice: User) -> None:
    device = factories.passkey(alice)
    device.count = None
    begun = passkeys.check_begin(alice, SITE)
    answer, accepted, ready = device.get(begun.options), [], threading.Barrier(4)

    def attempt() -> None:
        ready.wait()
        try:
            passkeys.check(alice, begun.challenge_id, SITE, answer)
            accepted.append(True)
        except PasskeyRefused:
            pass
        finally:
            connection.close()

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert accepted == [True]


def test_a_challenge_is_for_its_user_its_purpose_and_five_minutes(alice: User) -> None:
    device, mallory = factories.passkey(alice), factories.user("mallory")
    factories.passkey(mallory)
    theirs = passkeys.check_begin(mallory, SITE)
    adding = passkeys.add_begin(alice, SITE)
    old = passkeys.check_begin(alice, SITE)
    PasskeyChallenge.objects.filter(pk=old.challenge_id).update(
        created_at=timezone.now() - passkeys.TO_ANSWER - timedelta(seconds=1)
    )
    for begun in (theirs, old):
        with pytest.raises(PasskeyRefused, match="took too long"):
            passkeys.check(alice, begun.challenge_id, SITE, device.get(begun.options))
    for challenge_id in (adding.challenge_id, None):
        with pytest.raises(PasskeyRefused, match="took too long"):
            passkeys.check(alice, challenge_id, SITE, device.get(theirs.options))
    signing = passkeys.check_begin(alice, SITE)
    with pytest.raises(PasskeyRefused, match="took too long"):
        passkeys.add(alice, signing.challenge_id, SITE, Device().create(adding.options), name="")


@pytest.mark.parametrize(
    "changes",
    [
        {"origin": "http://localhost:8001"},
        {"origin": "http://evil.localhost"},
        {"origin": "https://localhost"},
        {"challenge": "AAAA"},
        {"type": "webauthn.create"},
        {"flags": 0},
        {"cross_origin": True},
        {"host": "example.org"},
    ],
)
def test_what_was_signed_for_something_else_is_refused(alice: User, changes: dict[str, Any]) -> None:
    device = factories.passkey(alice)
    with pytest.raises(PasskeyRefused):
        sign_in(alice, device, **changes)
    if "host" in changes:
        return
    begun = passkeys.add_begin(alice, SITE)
    changes = changes | ({"type": "webauthn.get"} if "type" in changes else {})
    with pytest.raises(PasskeyRefused):
        passkeys.add(alice, begun.challenge_id, SITE, Device().create(begun.options, **changes), name="")
    assert alice.passkeys.count() == 1


def test_another_users_passkey_and_another_key_do_not_sign_in(alice: User) -> None:
    device, mallory = factories.passkey(alice), factories.user("mallory")
    theirs = factories.passkey(mallory)
    with pytest.raises(PasskeyRefused):
        sign_in(alice, theirs)
    forged = Device()
    forged.credential_id, forged.count = device.credential_id, 9
    with pytest.raises(PasskeyRefused):
        sign_in(alice, forged)
    sign_in(alice, device)


def test_a_copied_passkey_is_refused(alice: User) -> None:
    device = factories.passkey(alice)
    for _ in range(3):
        sign_in(alice, device)
    for count in (0, 2):  # each use raises it by one before it is signed
        device.count = count
        with pytest.raises(PasskeyCopied):
            sign_in(alice, device)
    device.count = None  # a copy that claims not to count
    with pytest.raises(PasskeyCopied):
        sign_in(alice, device)
    device.count = 3
    sign_in(alice, device)


def test_a_passkey_that_does_not_count_signs_in_again_and_again(alice: User) -> None:
    device = factories.passkey(alice)
    device.count = None
    sign_in(alice, device)
    sign_in(alice, device)


def test_a_passkey_is_added_once(alice: User) -> None:
    device, begun = factories.passkey(alice), passkeys.add_begin(alice, SITE)
    (excluded,) = begun.options["publicKey"]["excludeCredentials"]
    assert excluded["transports"] == ["usb"]
    bob = factories.user("bob")
    for user in (alice, bob):
        begun = passkeys.add_begin(user, SITE)
        with pytest.raises(PasskeyRefused, match="added before"):
            passkeys.add(user, begun.challenge_id, SITE, device.create(begun.options), name="")
    with pytest.raises(IntegrityError), transaction.atomic():
        Passkey.objects.create(
            user=bob,
            name="copy",
            host="localhost",
            credential_id=device.credential_id,
            credential=b"",
            created_at=timezone.now(),
        )


def test_who_has_shown_no_second_factor_adds_none_beside_another(alice: User) -> None:
    begun = passkeys.add_begin(alice, SITE)
    factories.passkey(alice)
    with pytest.raises(PasskeyRefused, match="done before"):
        passkeys.add(alice, begun.challenge_id, SITE, Device().create(begun.options), name="", first=True)
    assert alice.passkeys.count() == 1


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        ("https://luthier.example.org", ""),
        ("https://luthier.example.org:8443", ""),
        ("http://localhost:8000", ""),
        ("http://luthier.localhost:8000", ""),
        ("http://luthier.example.org", "https"),
        ("http://notlocalhost", "https"),
        ("http://127.0.0.1:8000", "http://localhost:8000"),
        ("http://[::1]:8000", "http://localhost:8000"),
        ("https://10.0.0.8", "IP address"),
    ],
)
def test_where_browsers_have_no_passkeys_it_is_said(alice: User, origin: str, said: str) -> None:
    site = Site(origin)
    assert said in site.why_not
    if said:
        for begin in (passkeys.add_begin, passkeys.check_begin):
            with pytest.raises(PasskeysUnavailable, match=said):
                begin(alice, site)
    else:
        assert site.why_not == ""
        assert passkeys.add_begin(alice, site).options["publicKey"]["rp"]["id"] == site.host


def test_a_passkey_of_another_address_is_not_offered(alice: User) -> None:
    factories.passkey(alice, origin="https://old.example.org")
    new = Site("https://luthier.example.org")
    assert not passkeys.work_at(alice, new)
    assert passkeys.work_at(alice, Site("https://old.example.org"))
    with pytest.raises(PasskeysUnavailable, match="at this address"):
        passkeys.check_begin(alice, new)


def test_the_last_one_takes_the_recovery_codes_along_unless_one_is_required(
    alice: User, settings: LazySettings
) -> None:
    first, second = factories.passkey(alice), factories.passkey(alice)
    passkeys.remove(alice, first.row.pk)
    assert (two_factor.is_on(alice), RecoveryCode.objects.count()) == (True, 10)
    settings.LUTHIER_TWO_FACTOR_REQUIRED = True
    with pytest.raises(TwoFactorRequired):
        passkeys.remove(alice, second.row.pk)
    assert two_factor.is_on(alice)
    settings.LUTHIER_TWO_FACTOR_REQUIRED = False
    passkeys.remove(alice, second.row.pk)
    assert (two_factor.is_on(alice), RecoveryCode.objects.count()) == (False, 0)
    actions = list(AuditEntry.objects.order_by("id").values_list("action", flat=True))
    assert actions[-3:] == ["passkey.remove", "passkey.remove", "two_factor.disable"]


def test_of_an_app_and_a_passkey_either_may_go(alice: User, settings: LazySettings, tmp_path: Any) -> None:
    from portal.settings.secret import SecretsKeys

    settings.LUTHIER_SECRETS_KEYS = SecretsKeys((), tmp_path / "secrets_keys")
    settings.LUTHIER_TWO_FACTOR_REQUIRED = True
    factories.authenticator_app(alice)
    device = factories.passkey(alice)
    assert device.codes == []
    two_factor.app_remove(alice)
    assert two_factor.factors_of(alice).app_since is None
    sign_in(alice, device)
    two_factor.app_remove(alice)  # there is none
    assert AuditEntry.objects.filter(action="two_factor.remove").count() == 1
    secret_of = two_factor.app_begin(alice)
    begun = two_factor.app_begun(alice, secret_of)
    assert begun is not None
    two_factor.app_confirm(alice, secret_of, factories.app_code(begun.secret), replaces=True)
    passkeys.remove(alice, device.row.pk)
    with pytest.raises(TwoFactorRequired):
        two_factor.app_remove(alice)


def test_names_are_changed_by_their_user_only(alice: User) -> None:
    row = factories.passkey(alice).row
    bob = factories.user("bob")
    acts: list[Callable[[], object]] = [
        lambda: passkeys.rename(bob, row.pk, "x"),
        lambda: passkeys.remove(bob, row.pk),
    ]
    for act in acts:
        with pytest.raises(NotFound):
            act()
    for wrong in (" \t", "n" * 81):
        with pytest.raises(FieldsInvalid):
            passkeys.rename(alice, row.pk, wrong)
    passkeys.rename(alice, row.pk, "YubiKey")
    passkeys.rename(alice, row.pk, "YubiKey")
    assert Passkey.objects.get().name == "YubiKey"
    (entry,) = AuditEntry.objects.filter(action="passkey.rename")
    assert entry.details == {"passkey": "YubiKey", "before": "Passkey 1"}


def test_there_is_a_most_and_service_accounts_have_none(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passkeys, "MOST", 1)
    begun = passkeys.add_begin(alice, SITE)
    factories.passkey(alice)
    acts: list[Callable[[], object]] = [
        lambda: passkeys.add_begin(alice, SITE),
        lambda: passkeys.add(alice, begun.challenge_id, SITE, Device().create(begun.options), name=""),
    ]
    for act in acts:
        with pytest.raises(FieldsInvalid):
            act()
    robot = factories.user("ci", is_service_account=True)
    challenge = PasskeyChallenge.objects.create(user=robot, text="AAAA", adds=True, created_at=timezone.now())
    with pytest.raises(NotAllowed):
        passkeys.add_begin(robot, SITE)
    with pytest.raises(NotAllowed):
        passkeys.add(robot, challenge.pk, SITE, Device().create(begun.options, challenge="AAAA"), name="")


def test_a_reset_removes_passkeys_and_what_was_begun(alice: User) -> None:
    factories.passkey(alice)
    begun = passkeys.add_begin(alice, SITE)
    user_two_factor_reset(user=factories.user("admin", is_superuser=True), username="alice")
    assert not two_factor.is_on(alice)
    with pytest.raises(PasskeyRefused):
        passkeys.add(alice, begun.challenge_id, SITE, Device().create(begun.options), name="")


def test_a_session_has_one_challenge_at_a_time_and_old_ones_go(alice: User) -> None:
    first = passkeys.add_begin(alice, SITE)
    PasskeyChallenge.objects.update(created_at=timezone.now() - passkeys.TO_ANSWER * 2)
    second = passkeys.add_begin(alice, SITE)
    third = passkeys.add_begin(alice, SITE, replaces=second.challenge_id)
    assert [row.pk for row in PasskeyChallenge.objects.all()] == [third.challenge_id]
    assert first.challenge_id != third.challenge_id


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.data())
def test_no_answer_makes_it_fail_in_another_way_than_by_refusing(alice: User, data: st.DataObject) -> None:
    """Each part of a right answer in turn is something else."""
    adds = data.draw(st.booleans())
    with transaction.atomic():
        device = Device() if adds else factories.passkey(alice)
        begun = passkeys.add_begin(alice, SITE) if adds else passkeys.check_begin(alice, SITE)
        answer = json.loads(device.create(begun.options) if adds else device.get(begun.options))
        place = data.draw(st.sampled_from([answer, answer["response"]]))
        wrong = st.one_of(st.none(), st.integers(), st.text(), st.binary().map(repr), st.lists(st.text()))
        place[data.draw(st.sampled_from(sorted(set(place) - UNSIGNED)))] = data.draw(wrong)
        text = data.draw(
            st.one_of(st.just(json.dumps(answer)), st.text(), st.just("[1]"), st.just("9" * 20_000))
        )
        act = partial(passkeys.add, name="") if adds else passkeys.check
        with pytest.raises(PasskeyRefused):
            act(alice, begun.challenge_id, SITE, text)
        transaction.set_rollback(True)
