"""The states are what the page draws, and what people may do follows from them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobs.lifecycle.stopping import GRACEFUL
from jobs.states import (
    AFTER_STOPPING,
    FINAL,
    HOLDS_GPUS,
    OWN_FAILURES,
    STOP_LABELS,
    TRANSITIONS,
    Action,
    Intent,
    State,
    StopReason,
    allowed_actions,
    display_phase,
    ends_failed,
)

PAGE = (Path(__file__).parents[2] / "docs" / "job_states.md").read_text()
ARROW = re.compile(r"^    (\[\*\]|[A-Z]+) --> (\[\*\]|[A-Z]+)", re.MULTILINE)


def test_the_page_draws_exactly_the_legal_moves() -> None:
    drawn = {(source, target) for source, target in ARROW.findall(PAGE) if "[*]" not in (source, target)}
    assert drawn == {
        (source.value, target.value) for source, targets in TRANSITIONS.items() for target in targets
    }


def test_the_page_draws_the_beginning_and_the_ends() -> None:
    arrows = ARROW.findall(PAGE)
    assert {target for source, target in arrows if source == "[*]"} == {"QUEUED"}
    assert {source for source, target in arrows if target == "[*]"} == set(FINAL)


def test_the_pages_table_says_where_each_reason_leads() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.splitlines()
        if line.startswith("| `")
    ]
    documented = {reason: row for row in rows for reason in re.findall(r"`([a-z_]+)`", row[0])}
    assert set(documented) == set(StopReason)
    for reason in StopReason:
        _, target, asked, charged = documented[reason]
        assert target.startswith(AFTER_STOPPING[reason])
        assert (asked == "yes") == (reason in GRACEFUL)
        assert (charged == "yes") == (reason in OWN_FAILURES)


def test_slots_are_held_by_what_is_neither_waiting_nor_over() -> None:
    assert set(State) - HOLDS_GPUS == FINAL | {State.QUEUED, State.HALTED}
    assert all(AFTER_STOPPING[reason] in TRANSITIONS[State.STOPPING] for reason in StopReason)


@pytest.mark.parametrize("intent", list(Intent))
@pytest.mark.parametrize("state", list(State))
def test_actions_fit_the_state_and_the_intent(state: State, intent: Intent) -> None:
    actions = allowed_actions(state, intent)
    assert Action.CLONE in actions
    assert (Action.DELETE in actions) == (state in FINAL)
    if state in FINAL or intent == Intent.CANCEL:
        assert not {Action.HALT, Action.RESUME, Action.CANCEL} & set(actions)
    assert not {Action.HALT, Action.RESUME} <= set(actions)


@pytest.mark.parametrize("intent", [Intent.RUN, Intent.HALT])
def test_neither_halt_nor_resume_is_offered_where_it_could_save_nothing(intent: Intent) -> None:
    offered = set(allowed_actions(State.STOPPING, intent, fails=True))
    assert offered == {Action.CANCEL, Action.CLONE, Action.EDIT}
    assert Action.RESUME not in allowed_actions(State.HALTED, intent, time_is_up=True)


@pytest.mark.parametrize("reason", list(StopReason))
def test_a_stop_that_fails_is_known_beforehand(reason: StopReason) -> None:
    always = AFTER_STOPPING[reason] == State.FAILED
    assert ends_failed(State.STOPPING, reason, 0, 1) == always
    assert ends_failed(State.STOPPING, reason, 1, 1) == (always or reason == StopReason.LEARNER_FAILED)
    assert not ends_failed(State.PROCESSING, reason, 1, 1), "a reason of an earlier stop"


def test_every_reason_to_stop_has_a_word() -> None:
    assert set(STOP_LABELS) == set(StopReason)
    for reason in StopReason:
        assert display_phase(State.STOPPING, Intent.RUN, reason, 1).istitle()
