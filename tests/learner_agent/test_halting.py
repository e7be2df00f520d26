"""Deadlines of a halt: who gets SIGTERM and SIGKILL, and when."""

from __future__ import annotations

from typing import Any

import pytest

from learner_agent import halting
from learner_agent.halting import IMPORT_S, Halting

STARTED, NOW = 100.0, 200.0


def updated(
    current: Halting | None = None, *, imported: bool = True, now: float = NOW, **request: Any
) -> Any:
    content = {"intent": "HALT", "gen": 1, "grace_s": 30} | request
    return halting.updated(
        current, content, has_imported=imported, started_at=STARTED, now=now, default_grace_s=60
    )


@pytest.mark.parametrize(
    ("request_", "imported", "term_at", "kill_at"),
    [
        ({}, True, NOW + 30, NOW + 60),
        ({}, False, NOW, NOW + 30),
        ({"intent": "CANCEL"}, True, NOW, NOW + 30),
        ({"grace_s": "soon"}, True, NOW + 60, NOW + 120),
    ],
)
def test_a_program_that_checks_for_a_halt_gets_the_grace_period_before_sigterm(
    request_: dict[str, Any], imported: bool, term_at: float, kill_at: float
) -> None:
    current = updated(imported=imported, **request_)
    assert (current.term_at, current.kill_at) == (term_at, kill_at)


def test_a_program_that_has_just_started_gets_time_to_import_the_module() -> None:
    current = updated(imported=False, now=STARTED + 0.5)
    assert current.term_at == STARTED + IMPORT_S

    assert updated(current, now=STARTED + 1) is None, "nothing new to report"
    assert (current.is_aware, current.term_at) == (True, STARTED + 1 + 30)


def test_a_cancel_after_a_halt_does_not_postpone_sigkill() -> None:
    current = updated()
    cancel = updated(current, intent="CANCEL", gen=2, grace_s=600)
    assert (cancel.term_at, cancel.kill_at) == (NOW, current.kill_at)


@pytest.mark.parametrize("intent", ["HALT", "RUN"])
def test_a_repeated_or_milder_request_changes_no_deadline(intent: str) -> None:
    cancel = updated(intent="CANCEL")
    cancel.has_termed = True  # the launcher signals at once
    before = (cancel.term_at, cancel.kill_at)
    assert updated(cancel, intent=intent, gen=1, now=NOW + 5) is None
    assert updated(cancel, intent=intent, gen=2, now=NOW + 5) is cancel
    assert (cancel.gen, cancel.term_at, cancel.kill_at) == (2, *before)
