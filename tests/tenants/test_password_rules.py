"""Which passwords are refused, and that those which people should choose are not."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError

from portal.settings import env, values
from portal.settings.base import PASSWORD_MIN_CHARS
from tenants import password_rules
from tenants.models import User
from tenants.password_rules import LONGEST_PAIR, Common, is_listed, keep_list
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _no_list_is_kept() -> Iterator[None]:
    yield
    for each in password_rules._kept.values():
        each.file.close()
    password_rules._kept.clear()


def refused(password: str, user: User | None = None) -> list[str]:
    try:
        validate_password(password, user)
    except ValidationError as error:
        return [str(each.code) for each in error.error_list]
    return []


def test_a_password_has_as_many_characters_as_asked_and_never_fewer_than_8() -> None:
    """What differs is its length alone: each is refused for nothing else."""
    least = PASSWORD_MIN_CHARS
    assert least >= 8
    text = "vQ7zR4mK9tXw2LpB"
    assert [refused(text[:count]) for count in (7, least - 1, least)] == [
        ["password_too_short"], ["password_too_short"], [],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "password",
    [
        "password1234",
        "Password2026!!",
        "sunshinemonkey",
        "123456789012",
        "987654321098",
        "abcdefghijklm",
        "aaaaaaaaaaaa",
        "abcabcabcabcabc",
        "qwertyuiop123",
        "letmeinletmein",
        "1qaz2wsx3edc",
    ],
)
def test_what_is_common_or_made_of_it_is_refused(password: str) -> None:
    assert refused(password) == ["password_too_common"]


@pytest.mark.parametrize(
    "password",
    [
        "829471650328",
        "ab8374983749238",
        "NewPassword123!",
        "four unlike words here",
        "zzxk-qv83-plmw",
        "ÄÖÜ ßtraße ñandú",
        factories.PASSWORD,
    ],
)
def test_no_kind_of_character_is_required_and_long_ones_pass(password: str) -> None:
    assert refused(password) == []
    assert refused("short") == ["password_too_short"]


@pytest.mark.parametrize("unit", ["1", "a1", "ab", "-", "aB3$ "])
def test_a_password_as_large_as_a_request_may_be_is_judged_in_linear_time(unit: str) -> None:
    """A mebibyte; cut at each of its characters, it would be copied a million times."""
    large = unit * (2**20 // len(unit))
    assert Common().validate("Zq" + large + "x") is None
    with pytest.raises(ValidationError):
        Common().validate(large)


def test_words_of_the_installation_alone_are_refused(settings: LazySettings) -> None:
    settings.LUTHIER_PUBLIC_URL = "https://gpus.research.example"
    alice = factories.member(factories.tenant("vision-lab", name="Vision Lab"), "alice")
    for password in (
        "luthier-2026-11",
        "Luthier!Welcome!",
        "research20261!",
        "vision-lab-2026",
        "VisionLab!secret",
        "my Vision Lab 1",
    ):
        assert "password_own_words" in refused(password, alice), password
    assert refused("vision-lab-2026 zq") == [], "nothing shows which tenants there are"
    assert refused("vision-lab of purple otters", alice) == []


def test_two_common_ones_are_never_longer_than_what_is_looked_at() -> None:
    assert 2 * max(map(len, Common().passwords)) <= LONGEST_PAIR


def listed(path: Path, passwords: list[str], end: str = "\n") -> Path:
    digests = sorted(hashlib.sha1(each.encode()).hexdigest().upper() for each in passwords)
    path.write_text("\n".join(f"{each}:{n * n}" for n, each in enumerate(digests)) + end)
    return path


@pytest.mark.parametrize("count", [1, 2, 3, 50, 1000])
@pytest.mark.parametrize("end", ["\n", ""])
def test_a_leaked_password_is_found_wherever_it_is_in_the_file(tmp_path: Path, count: int, end: str) -> None:
    passwords = [secrets.token_hex(8) for _ in range(count)]
    path = listed(tmp_path / "leaked", passwords, end)
    assert all(is_listed(path, each) for each in passwords)
    assert not any(is_listed(path, secrets.token_hex(8)) for _ in range(200))


def test_a_leaked_password_cannot_be_set_nor_any_while_the_list_is_away(
    tmp_path: Path, settings: LazySettings
) -> None:
    path = listed(tmp_path / "leaked", ["purple otters sing low", "other"])
    settings.LUTHIER_BREACHED_PASSWORDS = path
    path.rename(tmp_path / "away")
    assert refused("purple otters sing high") == ["password_not_checked"], "this process never had it"
    (tmp_path / "away").rename(path)
    assert refused("purple otters sing low") == ["password_breached"]
    assert refused("purple otters sing high") == []


def test_a_process_keeps_the_list_that_it_had_and_takes_a_new_one(
    tmp_path: Path, settings: LazySettings
) -> None:
    path = listed(tmp_path / "leaked", ["purple otters sing low", "other"])
    settings.LUTHIER_BREACHED_PASSWORDS = path
    keep_list()
    path.unlink()
    assert refused("purple otters sing low") == ["password_breached"]
    assert refused("purple otters sing high") == []
    path.touch()
    assert refused("purple otters sing low") == ["password_breached"], "an empty file is none"
    listed(tmp_path / "newer", ["purple otters sing high"]).rename(path)
    assert refused("purple otters sing high") == ["password_breached"]
    assert refused("purple otters sing low") == []


@pytest.mark.parametrize("rest", [0, 45])
def test_a_list_that_is_copied_over_accepts_no_password(
    tmp_path: Path, settings: LazySettings, rest: int
) -> None:
    """Until the copy is whole, and it is not known when that is, it lacks lines; so does one that was cut off."""
    path = listed(tmp_path / "leaked", ["purple otters sing low", "other"])
    settings.LUTHIER_BREACHED_PASSWORDS = path
    keep_list()
    os.truncate(path, rest)
    assert refused("purple otters sing low") != []
    assert refused("purple otters sing high") == ["password_not_checked"]
    listed(tmp_path / "newer", ["purple otters sing low"]).rename(path)
    assert refused("purple otters sing low") == ["password_breached"]
    assert refused("purple otters sing high") == []


def test_only_the_start_of_an_installation_is_refused_without_its_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that restarts while a share is away goes on without; it says so."""
    monkeypatch.setenv("LUTHIER_BREACHED_PASSWORDS", str(tmp_path / "away"))
    read = env.read_environment()
    (warning,) = [each for each in env.warnings(read, {}) if "BREACHED" in each]
    assert "no password can be set" in warning
    with pytest.raises(SystemExit) as ended:
        env.refuse_at_start(read)
    assert ended.value.code == 78
    assert "LUTHIER_BREACHED_PASSWORDS: names no readable file" in capsys.readouterr().err


def test_a_file_that_is_no_such_list_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "list"
    for text, why in (("hunter2\n", "SHA-1"), ("", "SHA-1"), ("f" * 40 + "\n" + "0" * 40, "ascending")):
        path.write_text(text)
        with pytest.raises(ValueError, match=why):
            values.breached_passwords(path)
