"""Terms of the quota matrix beside its limits: of lending, for one user and one job, and of a tenant as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jobs.humanize import decimal
from jobs.spec.quantities import parse_duration, print_duration
from tenants.services.quotas import MAX_LIMIT, TERMS, WHOLE, WHOLE_TERMS, Term

Key = tuple[str, str, str]
"""A tenant's slug, a slot type or WHOLE, and the term's name."""
LABELS = {
    "borrowing_limit": ("Borrows at most", "all that others lend"),
    "lending_limit": ("Lends at most", "the whole limit"),
    "weight": ("Weight", "1"),
    "user_limit": ("One user at most", "no limit"),
    "gang_limit": ("One job at most", "no limit"),
    "cohort": ("Cohort", "none"),
    "jobs_limit": ("Concurrent jobs", "no limit"),
    "user_jobs_limit": ("Concurrent jobs of one user", "no limit"),
    "max_time_s": ("Longest time limit", "none needed"),
    "budget_gpu_hours": ("GPU-hours a month", "no budget"),
    "budget_is_hard": ("Budget is", "hard"),
}
"""What each term is called, and what an empty field means."""


def label_of(name: str) -> tuple[str, str]:
    """The same of any term: the history may have those of a later version, which write it during an upgrade."""
    return LABELS.get(name, (name, ""))


HARDNESS = {"hard": True, "soft": False}
"""Of a budget: whether GPU jobs stop at its end."""
MAX_TEXT = 40


@dataclass(frozen=True, slots=True)
class TermField:
    """One term and its field. before: as it is stored; value: as in the draft; shown: the content of the field."""

    tenant: str
    kind: str
    name: str
    before: Term
    value: Term
    shown: str

    @property
    def key(self) -> Key:
        return self.tenant, self.kind, self.name

    @property
    def id(self) -> str:
        return "-".join(filter(None, (self.name, self.tenant, self.kind)))

    @property
    def form_name(self) -> str:
        return f"{self.tenant}:{self.kind}:{self.name}"

    @property
    def stored(self) -> str:
        return _text(self.name, self.before)

    @property
    def label(self) -> str:
        return label_of(self.name)[0]

    @property
    def empty(self) -> str:
        """What an empty field means."""
        return label_of(self.name)[1]

    @property
    def changed(self) -> bool:
        return self.value != self.before

    @property
    def new(self) -> str:
        """The term of the draft as text; what an empty one means in words."""
        return _text(self.name, self.value) or self.empty

    @property
    def old(self) -> str:
        return self.stored or self.empty

    @property
    def special(self) -> bool:
        """Whether it is stored as something other than what a tenant has without it."""
        return self.before != {**TERMS, **WHOLE_TERMS}[self.name]


@dataclass(frozen=True, slots=True)
class TermsDraft:
    """Terms of a form. seen: those its sender saw; wrong: texts that are no such term, as they were typed."""

    requested: Mapping[Key, Term] = field(default_factory=dict)
    seen: Mapping[Key, Term] = field(default_factory=dict)
    wrong: Mapping[Key, str] = field(default_factory=dict)


def fields(tenant: str, kind: str, stored: Mapping[str, Term], draft: TermsDraft) -> tuple[TermField, ...]:
    """The fields of a tenant's terms for a type, or with WHOLE those of the tenant."""
    found = []
    for name, before in stored.items():
        key = (tenant, kind, name)
        value = draft.requested.get(key, before)
        found.append(TermField(tenant, kind, name, before, value, draft.wrong.get(key, _text(name, value))))
    return tuple(found)


def read(form: Mapping[str, Any]) -> TermsDraft:
    """Fields "term:<tenant>:<type>:<name>" and "was:<tenant>:<type>:<name>"."""
    requested: dict[Key, Term] = {}
    was: dict[Key, Term] = {}
    wrong: dict[Key, str] = {}
    for field_name, text in form.items():
        what, *of = field_name.split(":")
        if what not in ("term", "was") or len(of) != 3:
            continue
        key, text = (of[0], of[1], of[2]), text.strip()
        if of[2] not in (WHOLE_TERMS if of[1] == WHOLE else TERMS):
            continue
        try:
            (requested if what == "term" else was)[key] = _term(of[2], text)
        except ValueError:
            if what == "term":
                wrong[key] = text[:MAX_TEXT]
    return TermsDraft(requested, was, wrong)


def _term(name: str, text: str) -> Term:
    """The term that a text is. Raises ValueError, of which UnitError is one."""
    if name == "cohort":
        return text[: MAX_TEXT + 1]
    if name == "budget_is_hard":
        if text.lower() not in ("", *HARDNESS):
            raise ValueError(text)
        return HARDNESS.get(text.lower(), True)
    if not text:
        return 1 if name == "weight" else None
    if name == "budget_gpu_hours":
        return _hours(text)
    if name == "max_time_s":
        return parse_duration(text)
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ValueError(text)
    return int(text)


def _hours(text: str) -> float:
    """Whole or decimal hours. Raises ValueError."""
    whole, _, part = text.partition(".")
    if not (text.isascii() and whole.isdigit() and len(whole) <= 9 and (part.isdigit() or "." not in text)):
        raise ValueError(text)
    return float(text)


def described(changes: Mapping[str, tuple[Term, Term]]) -> list[tuple[str, str, str]]:
    """Of each term that a change set changed: what it is called, and what it was and became."""
    found = []
    for name, (before, after) in changes.items():
        label, empty = label_of(name)
        found.append((label, _text(name, before) or empty, _text(name, after) or empty))
    return found


def problems(draft: TermsDraft) -> Iterator[tuple[Key, str]]:
    """A sentence for each text that is no such term."""
    for key, text in draft.wrong.items():
        if key[2] == "max_time_s":
            yield key, f"{text!r} is no time; give one such as 90m, 12h or 2d, or leave it empty."
            continue
        if key[2] == "budget_is_hard":
            yield (
                key,
                f"{text!r} is neither hard nor soft; a hard budget stops GPU jobs, a soft one only warns.",
            )
            continue
        if key[2] == "budget_gpu_hours":
            yield key, f"{text!r} is no number of hours; give one such as 5000 or 12.5, or leave it empty."
            continue
        yield key, f"{text!r} is no number; give a whole number up to {MAX_LIMIT:,}, or leave it empty."


def changed(of: Iterable[TermField]) -> dict[str, Term]:
    return {term.name: term.value for term in of if term.changed}


def seen(of: Iterable[TermField], draft: TermsDraft) -> dict[str, Term]:
    """What the sender saw of the terms that they changed."""
    return {term.name: draft.seen.get(term.key, term.before) for term in of if term.changed}


def said(name: str, value: Term) -> str:
    """A term in a sentence."""
    return _text(name, value) or "none"


def _text(name: str, value: Term) -> str:
    if value is None:
        return ""
    if name == "budget_is_hard":
        return "hard" if value else "soft"
    if name == "budget_gpu_hours" and isinstance(value, int | float):
        return decimal(value)
    return print_duration(value) if name == "max_time_s" and isinstance(value, int) else str(value)
