"""Job.state has one writer: no other module of the server updates it, by the ORM, by an attribute or in SQL."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WRITER = "jobs/lifecycle/transitions.py"
OTHER_ROWS = {
    "jobs/ingest/checkpoints.py": {
        "saved.state = Checkpoint.State.UPLOADING",
        "saved.state = Checkpoint.State.COMMITTED",
        "saved.save(update_fields=['state', 'parts', 'committed_at'])",
        "saved.save(update_fields=['bytes', 'state', 'committed_at'])",
    },
    "portal/demo.py": {"user.save()"},
    "portal/pages/confirm.py": {"request.session.save()"},
    "portal/pages/session_start.py": {"request.session.save()"},
    "tenants/rows.py": {"setattr(row, field.attname, read(value, None, connection) if read else value)"},
    "tenants/services/identities.py": {"made.save()"},
    "tenants/services/secrets.py": {"row.save()"},
    "tenants/services/users.py": {"found.save()", "made.save()"},
    "tenants/services/views.py": {"row.save()"},
    "tenants/sessions.py": {"super().save(must_create)"},
    "tenants/two_factor.py": {"app.save()"},
}
"""Writes of rows that are no jobs, by module: what looks like a write of a job's state and is none."""
OTHER_MODELS = re.compile(
    r"(Checkpoint|ClusterNode|Estimate|Learner|Membership|Project|ProjectShare|Quota|Runtime|SchedulerState|Share|Tenant|User|Worker)\.objects\b"
)
UPDATES = {"update", "aupdate", "update_or_create", "aupdate_or_create", "bulk_update", "abulk_update"}
SQL = re.compile(
    r"""(?isx) \b (?: UPDATE (?:\s+ONLY)? | MERGE\s+INTO | INSERT\s+INTO (?=.*\bDO\s+UPDATE\b) ) \s+
    (?: "?jobs_job"? (?!\w) | \{\} ) .*? \b SET \b (?: (?!\bWHERE\b|\bRETURNING\b) . )*?
    (?<![\w.]) "?state"? \s* [=,)]"""
)


def possible_writes(source: str) -> list[str]:
    """What in this source may write a job's state, as source text."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _call_may_write(node):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(one, ast.Attribute) and one.attr == "state" for one in _flat(targets)):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp) and SQL.search(_text(node)):
            found.append(ast.unparse(node))
    return found


def _call_may_write(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name in {"setattr", "__setattr__"}:
        constant = next((one.value for one in call.args if isinstance(one, ast.Constant)), "state")
        return constant == "state"
    if name in {"save", "asave"}:
        return "'state'" in arguments.get("update_fields", "'state'")
    if name not in UPDATES or OTHER_MODELS.match(ast.unparse(call.func)):
        return False
    if name in {"bulk_update", "abulk_update"}:
        fields = arguments.get("fields", ast.unparse(call.args[1]) if len(call.args) > 1 else "")
        return "'state'" in fields or not fields.startswith("[")
    if isinstance(call.func, ast.Attribute) and call.args:
        return False  # of a dictionary or a set
    return (
        "state" in arguments or None in arguments or "defaults" in arguments or "create_defaults" in arguments
    )


def _flat(targets: list[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _flat(target.elts)
        else:
            yield target


def _text(node: ast.expr) -> str:
    """A string as far as the source shows it; {} is what it does not show."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(_text, values))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case ast.BinOp(left=left, op=ast.Mod()):
            return _text(left).replace("%s", "{}")
    return "{}"


@pytest.mark.parametrize(
    "source",
    [
        "Job.objects.filter(pk=1).update(state=State.FAILED)",
        "Job.objects.filter(pk=1).update(state=state)",
        "rows.update(state=Checkpoint.State.COMMITTED if odd else 'FAILED')",
        "Job.objects.update(**fields)",
        "await rows.aupdate(state='FAILED')",
        "Job.objects.update_or_create(pk=1, defaults={'state': 'FAILED'})",
        "Job.objects.update_or_create(pk=1, defaults=fields)",
        "Job.objects.bulk_update(rows, ['reason', 'state'])",
        "Job.objects.bulk_update(rows, fields=FIELDS)",
        "job.state = State.FAILED",
        "row.state = State.FAILED",
        "row.state, row.reason = State.FAILED, ''",
        "row.state: str = 'FAILED'",
        "setattr(job, 'state', State.FAILED)",
        "setattr(job, name, value)",
        "job.save()",
        "job.save(update_fields=['state'])",
        "cursor.execute('UPDATE jobs_job SET state = %s WHERE id = %s')",
        "cursor.execute('update jobs_job j set fence = 1, state=%s')",
        'cursor.execute(\'UPDATE "jobs_job" SET "state" = 1\')',
        "cursor.execute('UPDATE ONLY jobs_job SET (fence, state) = (1, 2)')",
        "cursor.execute(f'UPDATE {table} SET {column} = 1, state = 2')",
        "cursor.execute('UPDATE %s SET state = 1' % table)",
        "cursor.execute('UPDATE ' + table + ' SET state = 1')",
        "cursor.execute('INSERT INTO jobs_job (id) VALUES (1) ON CONFLICT DO UPDATE SET state = 1')",
    ],
)
def test_every_way_to_write_a_state_is_noticed(source: str) -> None:
    assert possible_writes(source)


@pytest.mark.parametrize(
    "source",
    [
        "Job.objects.filter(state=state).update(reason_code='x')",
        "Checkpoint.objects.filter(job=job).update(state=Checkpoint.State.CORRUPT)",
        "SchedulerState.objects.update_or_create(policy=name, defaults={'state': {}})",
        "Learner.objects.bulk_update(rows, ['phase'])",
        "blob.save(update_fields=['verified'])",
        "values.update({'state': 1})",
        "shown = {'state': job.state}",
        "'UPDATE jobs_job SET fence = 1 WHERE state = 2'",
        "'UPDATE jobs_jobevent SET state = 1'",
    ],
)
def test_reading_a_state_or_writing_something_else_is_none(source: str) -> None:
    assert not possible_writes(source)


def test_only_transitions_writes_the_state_of_a_job() -> None:
    found = {
        str(path.relative_to(ROOT)): set(possible_writes(path.read_text()))
        for room in ("jobs", "tenants", "portal")
        for path in (ROOT / room).rglob("*.py")
        if "migrations" not in path.parts
    }
    assert found.pop(WRITER)
    unknown = {name: texts - OTHER_ROWS.get(name, set()) for name, texts in found.items()}
    assert {name: texts for name, texts in unknown.items() if texts} == {}
    outdated = {name: texts - found[name] for name, texts in OTHER_ROWS.items()}
    assert {name: texts for name, texts in outdated.items() if texts} == {}
