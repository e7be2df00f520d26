"""The choices of fields, as functions: a new state or event needs no migration."""

from __future__ import annotations

from jobs.states import EventCode, Intent, Phase, State


def state_choices() -> list[tuple[str, str]]:
    return [(state.value, state.value) for state in State]


def intent_choices() -> list[tuple[str, str]]:
    return [(intent.value, intent.value) for intent in Intent]


def event_choices() -> list[tuple[str, str]]:
    return [(code.value, code.value) for code in EventCode]


def phase_choices() -> list[tuple[str, str]]:
    return [(phase.value, phase.value) for phase in Phase]
