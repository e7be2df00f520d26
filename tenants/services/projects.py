"""The projects of a tenant: set as a change set, all or none, with a reason and a line of history for each change."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import connection, transaction

from tenants import access, audit, checks
from tenants.errors import FieldsInvalid, LimitChanged, NotFound, problem
from tenants.models import Project, ProjectChange, ProjectShare, Quota, Tenant
from tenants.roles import Permission
from tenants.services.quotas import MAX_LIMIT, MAX_WEIGHT, QUOTA_LOCK

WHOLE = ""
"""In place of a slot type: what is set for a project as a whole."""
MAX_PROJECTS = 50
"""In one tenant: each one is a queue of its own in every plan."""
MAX_CHANGES = 500
"""In one set: quotas and projects of all tenants wait until it is checked."""
Term = int | None
USUAL: Mapping[str, Term] = {"guarantee": 0, "limit": None}
"""What a project has of a slot type by default."""
NO_PROJECT: Mapping[str, Term] = {"weight": None}
State = dict[tuple[str, str], dict[str, Term]]
"""By project and slot type, what is set; by project and WHOLE its weight. A project that has none does not exist."""


@dataclass(frozen=True, slots=True)
class Change:
    """One requested change. terms: of a slot type, guarantee and limit (None: no limit); with gpu_type WHOLE the
    weight, which makes the project if there is none; None removes it. if_terms: apply only while they are these."""

    project: str
    gpu_type: str
    terms: Mapping[str, Term] = field(default_factory=dict)
    if_terms: Mapping[str, Term] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Applied:
    """What changes of one project and slot type, before and after."""

    project: str
    gpu_type: str
    terms: Mapping[str, tuple[Term, Term]]


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """What a change set did, or would do. id is None for a dry run. after: everything as it is then."""

    id: uuid.UUID | None
    changes: tuple[Applied, ...]
    after: State


def project_changes_apply(
    *, user: access.Person, tenant: Tenant, changes: Sequence[Change], reason: str, dry_run: bool = False
) -> ChangeSet:
    """Set all of it or nothing. For managers of the tenant and platform admins.

    Raises NotFound, NotAllowed, FieldsInvalid, LimitChanged; each of the last two names every wrong change.
    """
    access.require(user, Permission.MANAGE_PROJECTS, tenant)
    if len(changes) > MAX_CHANGES:
        text = f"must be at most {MAX_CHANGES} in one set"
        checks.refuse(problem("changes", "too_many", text, len(changes), MAX_CHANGES))
    return _apply(user, tenant, changes, reason, dry_run)


def project_changes_tried(
    changes: Sequence[Change], before: State, quotas: Mapping[str, int]
) -> tuple[State, list[dict[str, Any]]]:
    """What these changes lead to, and what is wrong with them. quotas: the tenant's limits by slot type."""
    after = _after(changes, before)
    return after, [
        *_missing(changes, after),
        *_unknown_types(changes, before, quotas),
        *_too_much(changes, after, quotas),
        *_too_many(changes, after),
    ]


@transaction.atomic
def project_changes_undo(
    *, user: access.Person, tenant: Tenant, change_set: uuid.UUID, reason: str, dry_run: bool = False
) -> ChangeSet:
    """Set what this set changed back to what it was before, if nothing of it has changed since. Raises as above."""
    access.require(user, Permission.MANAGE_PROJECTS, tenant)
    rows = list(ProjectChange.objects.filter(tenant=tenant, change_set=change_set).order_by("pk"))
    if not rows:
        raise NotFound
    changes = [
        Change(
            row.project,
            row.gpu_type,
            {name: before for name, (before, _) in row.terms.items()},
            {name: after for name, (_, after) in row.terms.items()},
        )
        for row in rows
    ]
    _lock()
    # A project that is to be removed takes its shares with it; what is left to set comes after it exists.
    changes.sort(key=lambda change: change.gpu_type != WHOLE)
    gone = {
        change.project for change in changes if change.gpu_type == WHOLE and change.terms["weight"] is None
    }
    _refuse_more(gone, changes, projects_of(tenant))
    kept = [change for change in changes if change.gpu_type == WHOLE or change.project not in gone]
    return _apply(user, tenant, kept, reason, dry_run)


def _apply(
    user: access.Person, tenant: Tenant, changes: Sequence[Change], reason: str, dry_run: bool
) -> ChangeSet:
    """As project_changes_apply, for who may; of any number: an undo has as many as its set had effects."""
    checks.refuse(
        checks.text("reason", reason, 500),
        *(wrong for n, each in enumerate(changes) for wrong in _bounds(n, each)),
    )
    with transaction.atomic():
        _lock()
        before = projects_of(tenant)
        _refuse_outdated(changes, before)
        quotas = dict(Quota.objects.filter(tenant=tenant).values_list("gpu_type", "limit"))
        after, wrong = project_changes_tried(changes, before, quotas)
        if wrong:
            raise FieldsInvalid(errors=wrong)
        applied = tuple(_differences(before, after))
        change_set = None if dry_run or not applied else uuid.uuid4()
        if change_set:
            _write(tenant, applied, after)
            _record(tenant, applied, reason, user, change_set)
    return ChangeSet(change_set, applied, after)


def _lock() -> None:
    """Quotas and projects change one after the other: guarantees must not exceed what the tenant has."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [QUOTA_LOCK])


def _refuse_more(gone: set[str], changes: Sequence[Change], now: State) -> None:
    """Raise LimitChanged where a project that an undo removes has shares that the set did not give it."""
    given = {(change.project, change.gpu_type): change.if_terms for change in changes}
    wrong = [
        problem(
            "change_set", "limit_changed", f"{project} has since been given other shares of {kind}", project
        )
        for (project, kind), terms in now.items()
        if project in gone and kind != WHOLE and terms != {**USUAL, **given.get((project, kind), {})}
    ]
    if wrong:
        raise LimitChanged(errors=wrong)


def usual(gpu_type: str) -> Mapping[str, Term]:
    """What is set of a slot type, or of the project as a whole, where nothing was."""
    return NO_PROJECT if gpu_type == WHOLE else USUAL


def projects_of(tenant: Tenant) -> State:
    """Everything that is set of the tenant's projects."""
    found: State = {}
    for project in Project.objects.filter(tenant=tenant).order_by("slug"):
        found[project.slug, WHOLE] = {"weight": project.weight}
    shares = ProjectShare.objects.filter(project__tenant=tenant).order_by("project__slug", "gpu_type")
    for slug, gpu_type, guarantee, limit in shares.values_list(
        "project__slug", "gpu_type", "guarantee", "limit"
    ):
        found[slug, gpu_type] = {"guarantee": guarantee, "limit": limit}
    return found


def _bounds(index: int, change: Change) -> Iterator[dict[str, Any]]:
    at = f"changes[{index}]"
    if wrong := checks.slug(f"{at}.project", change.project, 40):
        yield wrong
    names = {"weight"} if change.gpu_type == WHOLE else set(USUAL)
    for name in sorted(change.terms.keys() - names):
        yield problem(
            f"{at}.{name}", "wrong_scope", "weight is of the project as a whole, the others of a type", None
        )
    for name, value in change.terms.items():
        least, most = (1, MAX_WEIGHT) if name == "weight" else (0, MAX_LIMIT)
        if name == "limit":
            least = 1
        if value is None and name != "guarantee":
            continue
        if not isinstance(value, int) or not least <= value <= most:
            allowed = f"{least} to {most}"
            yield problem(f"{at}.{name}", "out_of_range", f"must be {allowed}", value, allowed)


def _refuse_outdated(changes: Sequence[Change], before: State) -> None:
    wrong = []
    for index, change in enumerate(changes):
        now = before.get((change.project, change.gpu_type), usual(change.gpu_type))
        wrong += [
            problem(
                f"changes[{index}].{name}", "limit_changed", f"it is {now.get(name)}", seen, now.get(name)
            )
            for name, seen in change.if_terms.items()
            if now.get(name) != seen
        ]
    if wrong:
        raise LimitChanged(errors=wrong)


def _after(changes: Sequence[Change], before: State) -> State:
    after = {key: dict(terms) for key, terms in before.items()}
    for change in changes:
        key = (change.project, change.gpu_type)
        if change.gpu_type != WHOLE:
            after[key] = {**USUAL, **after.get(key, {}), **change.terms}
        elif change.terms.get("weight", 1) is None:
            for other in [other for other in after if other[0] == change.project]:
                del after[other]
        elif "weight" in change.terms:
            after[key] = dict(change.terms)
    return after


def _missing(changes: Sequence[Change], after: State) -> Iterator[dict[str, Any]]:
    seen = set()
    for index, change in enumerate(changes):
        key = (change.project, change.gpu_type)
        if key in seen:
            yield problem(
                f"changes[{index}]", "repeated", "this project and type appear twice", change.project
            )
        seen.add(key)
        sets_weight = change.gpu_type == WHOLE and "weight" in change.terms
        if not sets_weight and (change.project, WHOLE) not in after:
            text = "the tenant has no such project: set its weight, with an empty gpu_type, to make it"
            yield problem(f"changes[{index}].project", "project_not_found", text, change.project)
        terms = after.get(key, {})
        limit, guarantee = terms.get("limit"), terms.get("guarantee")
        if limit is not None and guarantee is not None and limit < guarantee:
            text = f"the guarantee is {guarantee}: the limit cannot be less"
            yield problem(f"changes[{index}].limit", "below_guarantee", text, limit, f"at least {guarantee}")


def _unknown_types(
    changes: Sequence[Change], before: State, quotas: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """Every plan reads all shares of all tenants, so a tenant makes no more than there are types that it was given."""
    known = {WHOLE, *quotas, *(gpu_type for _, gpu_type in before)}
    for index, change in enumerate(changes):
        if change.gpu_type not in known:
            allowed = sorted(quotas)
            text = f"the tenant has no quota of such a type; it has {', '.join(allowed) or 'none'}"
            yield problem(f"changes[{index}].gpu_type", "type_not_found", text, change.gpu_type, allowed)


def _too_much(changes: Sequence[Change], after: State, quotas: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    sums: defaultdict[str, int] = defaultdict(int)
    for (_, gpu_type), terms in after.items():
        sums[gpu_type] += terms.get("guarantee") or 0
    for index, change in enumerate(changes):
        guarantee, limit = change.terms.get("guarantee"), quotas.get(change.gpu_type, 0)
        if guarantee and sums[change.gpu_type] > limit:
            text = (
                f"the tenant's projects would be guaranteed {sums[change.gpu_type]} {change.gpu_type} together; its"
                f" limit is {limit}"
            )
            most = max(0, limit - sums[change.gpu_type] + guarantee)
            yield problem(f"changes[{index}].guarantee", "exceeds_quota", text, guarantee, f"at most {most}")


def _too_many(changes: Sequence[Change], after: State) -> Iterator[dict[str, Any]]:
    if sum(gpu_type == WHOLE for _, gpu_type in after) > MAX_PROJECTS:
        for index, change in enumerate(changes):
            if change.gpu_type == WHOLE and change.terms.get("weight") is not None:
                text = f"a tenant can have {MAX_PROJECTS} projects: remove one first"
                yield problem(
                    f"changes[{index}].project", "too_many", text, change.project, f"at most {MAX_PROJECTS}"
                )


def _differences(before: State, after: State) -> Iterator[Applied]:
    for key in sorted(before.keys() | after.keys()):
        default = usual(key[1])
        old, new = before.get(key, default), after.get(key, default)
        terms = {name: (old[name], new[name]) for name in default if old[name] != new[name]}
        if terms:
            yield Applied(*key, terms)


def _write(tenant: Tenant, applied: Sequence[Applied], after: State) -> None:
    """In few statements, whatever the number of changes: the lock of all quotas is held."""
    whole = [one.project for one in applied if one.gpu_type == WHOLE]
    Project.objects.filter(
        tenant=tenant, slug__in=[slug for slug in whole if (slug, WHOLE) not in after]
    ).delete()
    Project.objects.bulk_create(
        (
            Project(tenant=tenant, slug=slug, weight=after[slug, WHOLE]["weight"] or 1)
            for slug in whole
            if (slug, WHOLE) in after
        ),
        update_conflicts=True,
        unique_fields=["tenant", "slug"],
        update_fields=["weight"],
    )
    rows = {project.slug: project for project in Project.objects.filter(tenant=tenant)}
    ProjectShare.objects.bulk_create(
        (
            ProjectShare(project=rows[one.project], gpu_type=one.gpu_type, **after[one.project, one.gpu_type])
            for one in applied
            if one.gpu_type != WHOLE and (one.project, one.gpu_type) in after
        ),
        update_conflicts=True,
        unique_fields=["project", "gpu_type"],
        update_fields=["guarantee", "limit"],
    )


def _record(
    tenant: Tenant, applied: Sequence[Applied], reason: str, user: access.Person, change_set: uuid.UUID
) -> None:
    ProjectChange.objects.bulk_create(
        ProjectChange(
            tenant=tenant,
            project=one.project,
            gpu_type=one.gpu_type,
            terms={name: list(pair) for name, pair in one.terms.items()},
            reason=reason,
            actor_id=user.pk,
            change_set=change_set,
        )
        for one in applied
    )
    details = {
        f"{one.project}{f' {one.gpu_type}' if one.gpu_type else ''} {name}": {"from": old, "to": new}
        for one in applied
        for name, (old, new) in one.terms.items()
    }
    audit.record(
        actor=user,
        action="project.change",
        tenant_id=tenant.pk,
        target=", ".join(sorted({one.project for one in applied}))[:200],
        reason=reason,
        details=details,
    )
