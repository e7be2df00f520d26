"""Groups at the identity provider give roles in tenants, by a mapping that platform admins edit.

It is applied when a person signs in. A membership that a group gives is marked with the group and withdrawn when the
group no longer gives it; memberships that were made or changed by hand stay as they are.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import QuerySet

from tenants import access, audit, checks
from tenants.errors import VersionChanged, problem
from tenants.models import GroupMapping, Membership, Tenant, Token, User
from tenants.roles import RANK, Role
from tenants.services.members import send_role_changed
from tenants.services.users import links, require_provider

GROUP_CHARS = 200
LINES_MAX = 500
PARTS = ("tenant", "role", "group")


@dataclass(frozen=True, order=True)
class Rule:
    """Who is in the group has the role in the tenant."""

    tenant: str  # its slug
    role: Role
    group: str

    @property
    def line(self) -> str:
        return f"{self.tenant} {self.role} {self.group}"


class Fault(NamedTuple):
    """What is wrong with one part of a rule, as a sentence that names the part."""

    part: str
    code: str
    message: str
    allowed: object = None


@dataclass(frozen=True)
class Effect:
    """What a sign-in changes of one membership. None: there is none."""

    username: str
    tenant: str
    before: str | None
    after: str | None


def rules(*, user: access.Person) -> list[Rule]:
    """The mapping. Raises AdminOnly."""
    access.require_admin(user)
    return _stored()


def version(found: Iterable[Rule]) -> str:
    """What changes with the mapping, for If-Match."""
    lines = "\n".join(rule.line for rule in sorted(found))
    return f'"{hashlib.sha256(lines.encode()).hexdigest()[:16]}"'


def read_rules(text: str) -> list[Rule]:
    """Rules of lines such as "vision-lab researcher ml-users": tenant, role, and the group to the end of the line.

    Raises FieldsInvalid (path: mapping) with all that is wrong.
    """
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    found, faults = _checked([(*line.split(maxsplit=2), "", "")[:3] for _, line in lines[:LINES_MAX]])
    wrong = []
    if len(lines) > LINES_MAX:
        wrong.append(problem("mapping", "too_long", f"must have at most {LINES_MAX} lines"))
    for (n, line), of_line in zip(lines, faults, strict=False):
        if of_line:
            said = "; ".join(fault.message for fault in of_line)
            wrong.append(problem("mapping", "invalid", f"line {n}: {said}", line))
    checks.refuse(*wrong)
    return found


def rules_of(given: Sequence[Mapping[str, str]]) -> list[Rule]:
    """Rules of the texts tenant, role and group. Raises FieldsInvalid (path: rules[0].tenant …) with all faults."""
    found, faults = _checked([tuple(each[part] for part in PARTS) for each in given[:LINES_MAX]])
    wrong = []
    if len(given) > LINES_MAX:
        text = f"must be at most {LINES_MAX} rules"
        wrong.append(problem("rules", "too_many", text, len(given), LINES_MAX))
    for n, of_rule in enumerate(faults):
        for part, code, message, allowed in of_rule:
            wrong.append(problem(f"rules[{n}].{part}", code, message, given[n][part], allowed))
    checks.refuse(*wrong)
    return found


def effects(*, user: access.Person, wanted: list[Rule] | None = None) -> list[Effect]:
    """What the next sign-in of each person would change, by the groups of the last one.

    wanted: None for the mapping as it is. Raises AdminOnly or SingleSignOnOff.
    """
    access.require_admin(user)
    require_provider()
    counting = _stored() if wanted is None else wanted
    accounts = links().select_related("user").filter(user__is_active=True)
    rows: dict[int, list[Membership]] = defaultdict(list)
    for row in _memberships().filter(user__in=accounts.values("user")):
        rows[row.user_id].append(row)
    found = []
    for account in accounts.order_by("user__username"):
        groups = account.extra_data.get("groups", [])
        changes = _changes(rows[account.user_id], _given(counting, groups))
        name = account.user.get_username()
        found += [
            Effect(name, slug, row.role if row else None, rule.role if rule else None)
            for slug, row, rule in changes
        ]
    return found


@transaction.atomic
def rules_set(
    *, user: access.Person, wanted: list[Rule], if_match: frozenset[str] | None = None
) -> list[Rule]:
    """Replace the mapping, which is returned; memberships follow at the next sign-in of each person.

    Raises AdminOnly, SingleSignOnOff or VersionChanged.
    """
    access.require_admin(user)
    require_provider()
    held = {each.slug: each for each in Tenant.objects.select_for_update(no_key=True).order_by("pk")}
    before = _stored()
    if if_match is not None and version(before) not in if_match:
        raise VersionChanged(etag=version(before))
    added, removed = sorted(set(wanted) - set(before)), sorted(set(before) - set(wanted))
    if not added and not removed:
        return before
    GroupMapping.objects.all().delete()
    GroupMapping.objects.bulk_create(
        GroupMapping(group=rule.group, tenant=held[rule.tenant], role=rule.role) for rule in wanted
    )
    details = {"added": [rule.line for rule in added], "removed": [rule.line for rule in removed]}
    audit.record(actor=user, action="groups.change", details=details)
    return sorted(wanted)


@transaction.atomic
def apply_groups(user: User, groups: Iterable[str]) -> None:
    """Give and withdraw memberships by the groups that the provider states now; without any, all are withdrawn."""
    User.objects.select_for_update(no_key=True).get(pk=user.pk)  # two sign-ins of a person come one by one
    mine = _memberships().filter(user=user)
    due = {slug for slug, _, _ in _changes(mine, _given(_stored(), groups))}
    # As tenants.services.members does it, so what a manager changes meanwhile is seen below and left alone.
    held = {
        each.slug: each
        for each in Tenant.objects.select_for_update(no_key=True).filter(slug__in=due).order_by("pk")
    }
    for slug, row, rule in list(_changes(mine.all(), _given(_stored(), groups))):  # read again
        tenant = held.get(slug)
        if tenant is None:
            continue  # due since a moment ago: at the next sign-in
        if rule is None and row is not None:
            Token.objects.filter(user=user, tenant=tenant).delete()
            row.delete()
            _record(user, tenant, "member.remove", {"role": row.role, "group": row.group})
        elif rule is not None and row is None:
            given = {"role": rule.role, "group": rule.group}
            if Membership.objects.get_or_create(user=user, tenant=tenant, defaults=given)[
                1
            ]:  # or by hand just now
                _record(user, tenant, "member.add", {"role": rule.role.value, "group": rule.group})
        elif rule is not None and row is not None:
            details = {"from": row.role, "to": rule.role.value, "group": rule.group}
            Membership.objects.filter(pk=row.pk).update(role=rule.role, group=rule.group)
            _record(user, tenant, "member.change", details)
            send_role_changed(user.pk, tenant)


def _checked(given: Iterable[tuple[str, ...]]) -> tuple[list[Rule], list[list[Fault]]]:
    """The rules of these parts, sorted, and for each the faults that kept it out."""
    slugs = set(Tenant.objects.values_list("slug", flat=True))
    found: dict[tuple[str, str], Rule] = {}
    faults: list[list[Fault]] = []
    for slug, role, group in given:
        wrong = []
        if slug not in slugs:
            wrong.append(Fault("tenant", "tenant_not_found", f"there is no tenant {slug[:40]}"))
        if role not in set(Role):
            known = [each.value for each in Role]
            wrong.append(
                Fault("role", "invalid_choice", f"the role must be one of {', '.join(known)}", known)
            )
        if not 0 < len(group) <= GROUP_CHARS or not group.isprintable() or group != group.strip():
            text = f"the group must have 1 to {GROUP_CHARS} printable characters, and no space around them"
            wrong.append(Fault("group", "bad_group", text))
        if (slug, group) in found:
            wrong.append(Fault("group", "repeated", "the group has a role in this tenant already"))
        if not wrong:
            found[slug, group] = Rule(slug, Role(role), group)
        faults.append(wrong)
    return sorted(found.values()), faults


def _stored() -> list[Rule]:
    rows = GroupMapping.objects.select_related("tenant")
    return sorted(Rule(row.tenant.slug, Role(row.role), row.group) for row in rows)


def _given(wanted: Iterable[Rule], groups: Iterable[str]) -> dict[str, Rule]:
    """By tenant, the rule that gives most to who is in these groups."""
    mine, given = set(groups), {}
    for rule in sorted(wanted, key=lambda rule: (RANK[rule.role], rule.group)):
        if rule.group in mine:
            given[rule.tenant] = rule
    return given


def _memberships() -> QuerySet[Membership]:
    return Membership.objects.select_related("tenant")


def _changes(
    rows: Iterable[Membership], given: dict[str, Rule]
) -> Iterator[tuple[str, Membership | None, Rule | None]]:
    """By tenant, the membership of a person's rows and the rule that gives another role, or none."""
    there = {row.tenant.slug: row for row in rows}
    for slug in sorted(given.keys() | there.keys()):
        row, rule = there.get(slug), given.get(slug)
        if row is not None and (not row.group or (rule and rule.role == row.role)):
            continue  # made by hand, or as it should be
        yield slug, row, rule


def _record(user: User, tenant: Tenant, action: str, details: dict[str, Any]) -> None:
    audit.record(actor=user, action=action, tenant_id=tenant.pk, target=user.get_username(), details=details)
