"""What the workers find of the store of files, and since when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models.functions import Now

from jobs import blobs
from jobs.blobs import health
from jobs.blobs.folder import FolderStore
from jobs.blobs.health import examine
from jobs.blobs.store import MAX_PIECE
from jobs.models import PeriodicTask
from portal.health import checks

NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)


def later(minutes: int) -> datetime:
    return NOON + timedelta(minutes=minutes)


def answers(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    def check() -> None:
        if error:
            raise error

    monkeypatch.setattr(health, "check", check)


AWAY = blobs.StoreUnavailable("Could not connect.\nAnd more")


def test_an_outage_has_a_beginning_and_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, None)
    well = examine({}, NOON)
    assert well == {"problem": "", "away": False, "full": False, "since": None, "back_at": None}
    answers(monkeypatch, AWAY)
    away = examine(well, later(1))
    assert (away["problem"], away["away"], away["since"]) == (
        "Could not connect",
        True,
        later(1).isoformat(),
    )
    assert examine(away, later(2)) == away
    answers(monkeypatch, None)
    back = examine(away, later(3))
    assert back == well | {"back_at": later(3).isoformat()}
    assert examine(back, later(4)) == back


def test_a_slow_store_is_not_away(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, None)
    monkeypatch.setattr(health, "SLOW_S", -1)
    slow = examine({}, NOON)
    assert (slow["away"], slow["since"], slow["back_at"]) == (False, NOON.isoformat(), None)
    assert "a request took 0.0 s" in slow["problem"]
    answers(monkeypatch, AWAY)
    assert examine(slow, later(1))["since"] == later(1).isoformat(), "another problem"


def test_a_folder_that_cannot_be_written_is_away(tmp_path: Path, settings: Any) -> None:
    (tmp_path / "blobs").write_text("a file")
    settings.LUTHIER_BLOBS = str(tmp_path / "blobs")
    assert examine({}, NOON)["away"]


@pytest.mark.django_db
def test_a_folder_whose_disk_takes_no_more_pieces_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """And away: what waits for it is not stalled."""
    monkeypatch.setattr(FolderStore, "room", lambda self: MAX_PIECE - 1)
    away = examine({}, NOON)
    assert away["away"]
    assert away["full"]
    PeriodicTask.objects.create(name=health.TASK, result=away, done_at=Now())
    assert health.health().sentence == (
        "The store of files has been full since 2026-11-25 12:00:00 UTC: the disk is as full as LUTHIER_MIN_FREE_DISK"
        " lets it become."
    )
    assert checks.blob_store().found == "full"
    with monkeypatch.context() as silent:
        answers(silent, AWAY)
        other = examine(away, later(1))
    assert (other["since"], other["full"]) == (later(1).isoformat(), False), "another problem"
    monkeypatch.setattr(FolderStore, "room", lambda self: MAX_PIECE)
    assert not examine(away, later(1))["away"]


@pytest.mark.django_db
def test_unknown_until_a_worker_has_checked() -> None:
    found = health.health()
    assert (found.checked_at, found.problem, found.sentence) == (None, "", "")
