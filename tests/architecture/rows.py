"""Who may use which route, and how: one row per route. A route without a row fails the matrix.

A rule names those who are let in; everyone else is listed with the status that they get instead.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from portal.live.protocol import Topic
from tenants.services.groups import version
from tests.architecture.world import LEARNERS, TABS, Who
from tests.factories import PASSWORD

IN = 0
"""The operation's own status: let in."""
Rule = Mapping[Who, int]

TENANT_PEOPLE = (Who.VIEWER, Who.COLLEAGUE, Who.OWNER, Who.MANAGER)
OUTSIDE = (Who.STRANGER, Who.GUEST, Who.OPERATOR)


def rule(**groups: int) -> Rule:
    """A rule out of groups of people; anonymous callers and learners always get 401."""
    named: dict[Who, int] = dict.fromkeys(Who, IN)
    named |= dict.fromkeys((Who.ANONYMOUS, *LEARNERS), 401)
    for group, status in groups.items():
        for who in GROUPS[group]:
            named[who] = status
    return named


GROUPS: dict[str, tuple[Who, ...]] = {
    "outside": OUTSIDE,
    "stranger": (Who.STRANGER,),
    "guest": (Who.GUEST,),
    "operator": (Who.OPERATOR,),
    "viewer": (Who.VIEWER,),
    "colleague": (Who.COLLEAGUE,),
    "owner": (Who.OWNER,),
    "manager": (Who.MANAGER,),
    "people": TENANT_PEOPLE,
    "admin": (Who.ADMIN,),
}

ANY_USER = rule()
TENANT_READ = rule(outside=404)
TENANT_MANAGE = rule(outside=404, viewer=403, colleague=403, owner=403)
TENANT_SUBMIT = rule(outside=404, viewer=403, admin=403)
TENANT_ADMIN = rule(outside=404, people=403)
INSTALLATION_ADMIN = rule(outside=403, people=403)
JOB_READ = rule(stranger=404)
JOB_OPERATE = rule(stranger=404, guest=403, viewer=403, colleague=403)
JOB_CLONE = rule(stranger=404, guest=403, operator=403, viewer=403, admin=403)
JOB_DECIDE = rule(stranger=404, guest=403, operator=403, viewer=403, colleague=403)
OWN_THING = rule(outside=404, viewer=404, colleague=404, manager=404, admin=404)
TAKES_A_CODE = rule(owner=400)  # who has a passkey
WRONG_CODE = rule(outside=400, people=400, admin=400)
NEVER = rule(outside=404, people=404, admin=404)


@dataclass(frozen=True)
class Row:
    """One operation: its rule, what its path's variables stand for (names in World.things), and a body that works.

    note: of which of several kinds of things the rule is, and where that of the others is.
    """

    rule: Rule
    things: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def payload(self) -> bytes:
        if self.body is None:
            return b""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


SPEC = {
    "apiVersion": "luthier/v1",
    "name": "train",
    "framework": "sklearn",
    "code": {"files": {"train.py": "print('hello')\n"}},
    "command": "python train.py",
}
REASON = {"reason": "matrix"}
PROOF = {"password": PASSWORD}
MAPPING = {"rules": [{"tenant": "vision-lab", "role": "viewer", "group": "everyone"}]}
HALTED, DONE, FAILED = {"job_id": "halted"}, {"job_id": "done"}, {"job_id": "failed"}
SHARED = {"view_id": "shared_view_id"}


def _archive() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        info = tarfile.TarInfo("train.py")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"pass\n"))
    return packed.getvalue()


BOUNDARY = "matrix"
UPLOAD = (
    (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="archive"; filename="code.tar.gz"\r\n'
        "Content-Type: application/gzip\r\n\r\n"
    ).encode()
    + _archive()
    + f"\r\n--{BOUNDARY}--\r\n".encode()
)

T, J = "tenants/<str:t>", "jobs/<str:job_id>"
API: dict[str, Row] = {
    "GET me": Row(ANY_USER),
    "GET me/preferences": Row(ANY_USER),
    "PATCH me/preferences": Row(ANY_USER, body={"shortcuts": False}),
    "GET me/tokens": Row(ANY_USER),
    "POST me/tokens": Row(ANY_USER, body={"name": "x"}),
    "DELETE me/tokens/<str:token_id>": Row(OWN_THING),
    "GET me/secrets": Row(ANY_USER),
    "PUT me/secrets/<str:name>": Row(ANY_USER, body={"value": "matrix-matrix"}),
    "DELETE me/secrets/<str:name>": Row(OWN_THING, {"name": "own_secret"}),
    "POST me/memberships/<str:t>/accept": Row(rule(outside=404, admin=404)),
    "GET me/sessions": Row(ANY_USER),
    "DELETE me/sessions": Row(ANY_USER),
    "GET me/sessions/<str:session_id>": Row(OWN_THING),
    "DELETE me/sessions/<str:session_id>": Row(OWN_THING),
    "POST me/password": Row(
        TAKES_A_CODE, body={"current_password": PASSWORD, "new_password": "tuba horn bass 47"}
    ),
    "GET me/two-factor": Row(ANY_USER),
    "POST me/two-factor/remove": Row(TAKES_A_CODE, body=PROOF),
    "POST me/two-factor/app": Row(TAKES_A_CODE, body=PROOF),
    "POST me/two-factor/app/confirm": Row(WRONG_CODE, body={"app": "1", "app_code": "000000", **PROOF}),
    "POST me/two-factor/app/remove": Row(TAKES_A_CODE, body=PROOF),
    "POST me/two-factor/codes": Row(TAKES_A_CODE, body=PROOF),
    "PATCH me/two-factor/passkeys/<int:passkey_id>": Row(OWN_THING, body={"name": "laptop"}),
    "POST me/two-factor/passkeys/<int:passkey_id>/remove": Row(
        rule(outside=404, viewer=404, colleague=404, owner=400, manager=404, admin=404), body=PROOF
    ),
    "GET users": Row(INSTALLATION_ADMIN),
    "POST users": Row(INSTALLATION_ADMIN, body={"username": "erin2"}),
    "GET users/<str:username>": Row(INSTALLATION_ADMIN),
    "PATCH users/<str:username>": Row(INSTALLATION_ADMIN, body={"email": "carol@example.com"}),
    "POST users/<str:username>/reset": Row(INSTALLATION_ADMIN, body={}),
    "POST users/<str:username>/disable": Row(INSTALLATION_ADMIN, body={}),
    "POST users/<str:username>/enable": Row(INSTALLATION_ADMIN, body={}),
    "GET users/<str:username>/sessions": Row(INSTALLATION_ADMIN),
    "DELETE users/<str:username>/sessions": Row(INSTALLATION_ADMIN),
    "DELETE users/<str:username>/sessions/<str:session_id>": Row(INSTALLATION_ADMIN, {"username": "owner"}),
    "POST users/<str:username>/reset-two-factor": Row(INSTALLATION_ADMIN, body={}),
    "GET users/<str:username>/identities": Row(INSTALLATION_ADMIN),
    "POST users/<str:username>/identities": Row(INSTALLATION_ADMIN, body={"subject": "carol-there"}),
    "DELETE users/<str:username>/identities/<str:identity_id>": Row(
        INSTALLATION_ADMIN, {"username": "owner"}
    ),
    "GET group-mapping": Row(INSTALLATION_ADMIN),
    "PUT group-mapping": Row(INSTALLATION_ADMIN, body=MAPPING, headers={"If-Match": "*"}),
    "POST group-mapping:preview": Row(INSTALLATION_ADMIN, body=MAPPING),
    "GET tenants": Row(ANY_USER),
    "POST tenants": Row(INSTALLATION_ADMIN, body={"slug": "speech", "name": "Speech", **REASON}),
    f"GET {T}": Row(TENANT_READ),
    f"PATCH {T}": Row(TENANT_ADMIN, body={"name": "Vision", **REASON}),
    "GET audit": Row(INSTALLATION_ADMIN),
    f"GET {T}/audit": Row(TENANT_MANAGE),
    f"GET {T}/members": Row(TENANT_READ),
    f"POST {T}/members": Row(TENANT_MANAGE, body={"username": "gina", "role": "viewer"}),
    f"PATCH {T}/members/<str:username>": Row(TENANT_MANAGE, body={"role": "researcher"}),
    f"DELETE {T}/members/<str:username>": Row(
        rule(outside=404, colleague=403, owner=403)  # carol herself may leave
    ),
    f"GET {T}/service-accounts": Row(TENANT_MANAGE),
    f"POST {T}/service-accounts": Row(TENANT_MANAGE, body={"name": "deploy"}),
    f"DELETE {T}/service-accounts/<str:name>": Row(TENANT_MANAGE),
    f"GET {T}/service-accounts/<str:name>/tokens": Row(TENANT_MANAGE),
    f"POST {T}/service-accounts/<str:name>/tokens": Row(TENANT_MANAGE, body={"name": "x"}),
    f"DELETE {T}/service-accounts/<str:name>/tokens/<str:token_id>": Row(
        TENANT_MANAGE, {"token_id": "account_token"}
    ),
    f"GET {T}/queue": Row(TENANT_READ),
    f"GET {T}/quotas": Row(TENANT_READ),
    f"GET {T}/images": Row(TENANT_READ),
    f"PUT {T}/images": Row(TENANT_ADMIN, body={"patterns": ["registry.example/vision/*"], **REASON}),
    f"GET {T}/storage": Row(TENANT_READ),
    f"PUT {T}/storage": Row(TENANT_ADMIN, body={"limit_bytes": 1_000_000, **REASON}),
    f"GET {T}/retention": Row(TENANT_READ),
    f"PUT {T}/retention": Row(TENANT_ADMIN, body={"rules": {"logs": {"days": 90}}, **REASON}),
    f"POST {T}/retention:preview": Row(TENANT_ADMIN, body={}),
    f"PUT {T}/quotas/<str:gpu_type>": Row(TENANT_ADMIN, body={"limit": 9, **REASON}),
    f"GET {T}/quota-changes": Row(TENANT_READ),
    "POST quota-changes": Row(
        INSTALLATION_ADMIN,
        body={"changes": [{"tenant": "vision-lab", "gpu_type": "cpu", "limit": 9}], **REASON},
    ),
    f"GET {T}/projects": Row(TENANT_READ),
    f"GET {T}/project-changes": Row(TENANT_READ),
    f"POST {T}/project-changes": Row(
        TENANT_MANAGE, body={"changes": [{"project": "vision", "gpu_type": "", "weight": 2}], **REASON}
    ),
    f"POST {T}/project-changes/<str:change_set>/undo": Row(TENANT_MANAGE, body=REASON),
    f"GET {T}/secrets": Row(rule(outside=404, viewer=403)),
    f"PUT {T}/secrets/<str:name>": Row(TENANT_MANAGE, body={"value": "matrix-matrix"}),
    f"DELETE {T}/secrets/<str:name>": Row(TENANT_MANAGE, {"name": "tenant_secret"}),
    f"GET {T}/views": Row(TENANT_READ),
    f"POST {T}/views": Row(TENANT_READ, body={"name": "Sweeps", "filters": {"tag": "sweep"}}),
    f"PATCH {T}/views/<int:view_id>": Row(
        OWN_THING, body={"name": "Nightly sweeps"}, note="one's own; a shared one as with DELETE"
    ),
    f"DELETE {T}/views/<int:view_id>": Row(
        TENANT_MANAGE, SHARED, note="a shared one; one's own as with PATCH"
    ),
    f"GET {T}/dismissals": Row(TENANT_READ),
    f"POST {T}/dismissals": Row(TENANT_READ, body={}),
    f"DELETE {T}/dismissals": Row(TENANT_READ),
    f"GET {T}/usage": Row(TENANT_READ),
    f"GET {T}/fairness": Row(TENANT_READ),
    f"GET {T}/fairness/history": Row(TENANT_READ),
    "GET fairness": Row(INSTALLATION_ADMIN),
    "GET fairness/history": Row(INSTALLATION_ADMIN),
    f"POST {T}/uploads": Row(
        TENANT_SUBMIT, body=UPLOAD, content_type=f"multipart/form-data; boundary={BOUNDARY}"
    ),
    f"POST {T}/jobs:validate": Row(TENANT_SUBMIT, body=SPEC),
    f"POST {T}/jobs": Row(TENANT_SUBMIT, body=SPEC),
    "GET jobs": Row(ANY_USER),
    f"GET {J}": Row(JOB_READ),
    f"PATCH {J}": Row(JOB_DECIDE, body={"tags": ["x"]}),
    f"DELETE {J}": Row(JOB_DECIDE, DONE),
    f"POST {J}/halt": Row(JOB_OPERATE),
    f"POST {J}/checkpoint": Row(JOB_OPERATE),
    f"POST {J}/resume": Row(JOB_OPERATE, HALTED),
    f"POST {J}/cancel": Row(JOB_OPERATE),
    f"POST {J}/clone": Row(JOB_CLONE),
    f"GET {J}/events": Row(JOB_READ),
    f"GET {J}/attempts": Row(JOB_READ),
    f"GET {J}/learners": Row(JOB_READ),
    f"GET {J}/suggestions": Row(JOB_READ),
    f"GET {J}/spec": Row(JOB_READ),
    f"GET {J}/logs": Row(JOB_READ),
    f"GET {J}/logs/levels": Row(JOB_READ),
    f"GET {J}/logs/raw": Row(JOB_READ),
    f"GET {J}/metrics": Row(JOB_READ),
    f"GET {J}/metrics.csv": Row(JOB_READ),
    f"GET {J}/checkpoints": Row(JOB_READ),
    f"GET {J}/checkpoints/<int:n>": Row(JOB_READ),
    f"GET {J}/checkpoints/<int:n>/files/<path:path>": Row(JOB_READ),
    f"GET {J}/results": Row(JOB_READ),
    f"GET {J}/results/<path:path>": Row(JOB_READ),
    f"GET {J}/results.zip": Row(JOB_READ),
    f"GET {J}/code": Row(JOB_READ),
    f"GET {J}/code/<path:path>": Row(JOB_READ),
    f"PUT {J}/dismissal": Row(JOB_READ, FAILED, note="the caller's own"),
    f"DELETE {J}/dismissal": Row(JOB_READ, FAILED, note="the caller's own"),
    f"GET {J}/shares": Row(JOB_DECIDE),
    f"POST {J}/shares": Row(JOB_DECIDE, body={"username": "bob", "permission": "view"}),
    f"DELETE {J}/shares/<str:username>": Row(JOB_DECIDE, {"username": "guest"}),
    "GET cluster": Row(ANY_USER),
    "GET cluster/nodes": Row(ANY_USER),
    "GET runtimes": Row(ANY_USER),
    "POST runtimes": Row(
        INSTALLATION_ADMIN, body={"slug": "speech", "title": "Speech", "requirements": ["tqdm"]}
    ),
    "PATCH runtimes/<str:slug>": Row(INSTALLATION_ADMIN, {"slug": "runtime"}, body={"enabled": False}),
    "DELETE runtimes/<str:slug>": Row(INSTALLATION_ADMIN, {"slug": "runtime"}),
    "GET schema/job": Row(ANY_USER),
    "GET openapi.json": Row(ANY_USER),
    **{rf"{method} ^(?P<rest>[\s\S]*)\Z": Row(NEVER) for method in ("GET", "POST", "PUT", "PATCH", "DELETE")},
}


@dataclass(frozen=True)
class Page:
    """One page or form of the portal. let_in: who gets it; all others get what they would of a missing one.

    post: a form, sent with data (names in World.things, or plain values). changes: those who are let in change
    something by it, all others change nothing. open_to_all: needs no account. for_learners: takes their secret only.
    own_token: takes a token of the installation only. note: as of Row.
    """

    let_in: Rule
    post: bool = False
    things: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    changes: bool = False
    open_to_all: bool = False
    for_learners: bool = False
    own_token: bool = False
    note: str = ""


def form(let_in: Rule, things: Mapping[str, str] | None = None, *, changes: bool = True, **data: str) -> Page:
    return Page(let_in, post=True, things=things or {}, data=data, changes=changes)


CONSOLE = "admin-console/"
CONSOLE_ONLY = rule(outside=404, people=404)
TENANT_SLUG = "t/<slug:slug>"
JOB_PAGE = r"t/(?P<slug>[-a-zA-Z0-9_]+)/jobs/(?P<job_id>[0-9a-z]{12})"
PUBLIC = Page(ANY_USER, open_to_all=True)
FOR_PROMETHEUS = Page(rule(), own_token=True)
FOR_LEARNERS = Page(rule(), for_learners=True)
TENANT_OPERATE = rule(outside=404, viewer=403, colleague=403)
PAGES: dict[str, tuple[Page, ...]] = {
    "healthz": (PUBLIC,),
    "readyz": (PUBLIC,),
    ".well-known/security.txt": (PUBLIC,),
    "metrics": (FOR_PROMETHEUS,),
    "login": (PUBLIC,),
    "login/sso": (PUBLIC,),
    "login/sso/callback": (PUBLIC,),
    "login/code": (PUBLIC,),
    "login/passkey": (Page(ANY_USER, post=True, open_to_all=True),),
    "login/two-factor": (PUBLIC,),
    "welcome": (PUBLIC,),
    "welcome/password": (PUBLIC,),
    "logout": (Page(ANY_USER, post=True, open_to_all=True),),
    "": (Page(ANY_USER),),
    "cluster": (Page(ANY_USER),),
    "cluster/timeline": (Page(ANY_USER),),
    "docs/api": (Page(ANY_USER),),
    "help": (Page(ANY_USER),),
    "help/<slug:name>": (Page(ANY_USER, things={"name": "guide"}),),
    "me": (Page(ANY_USER),),
    "me/confirm": (Page(ANY_USER),),
    "me/confirm/passkey": (Page(ANY_USER, post=True),),
    "me/confirm/sso": (Page(ANY_USER),),
    "me/appearance": (form(ANY_USER, changes=False, theme="dark"),),
    "me/two-factor": (Page(ANY_USER),),
    "me/two-factor/begin": (form(ANY_USER, changes=False),),
    "me/two-factor/confirm": (form(ANY_USER, changes=False, code="000000"),),
    "me/two-factor/app/remove": (form(ANY_USER, changes=False),),
    "me/two-factor/passkeys/begin": (form(ANY_USER, changes=False),),
    "me/two-factor/passkeys/add": (form(ANY_USER, changes=False, passkey="{}"),),
    "me/two-factor/passkeys/<int:passkey_id>/rename": (form(OWN_THING, changes=False, name="laptop"),),
    "me/two-factor/passkeys/<int:passkey_id>/remove": (form(OWN_THING, changes=False),),
    "me/two-factor/remove": (form(ANY_USER, changes=False),),
    "me/two-factor/codes": (form(ANY_USER, changes=False),),
    "me/secrets": (Page(ANY_USER),),
    "me/secrets/set": (form(ANY_USER, name="hf", value="matrix-matrix"),),
    "me/secrets/delete": (
        form(rule(outside=404, viewer=404, colleague=404, manager=404, admin=404), name="own_secret"),
    ),
    "me/password": (form(ANY_USER, changes=False),),
    "me/memberships/<slug:slug>/accept": (form(rule(outside=404, admin=404), changes=False),),
    "me/sessions/<str:session_id>/end": (
        form(rule(outside=404, viewer=404, colleague=404, manager=404, admin=404), changes=False),
    ),
    "me/sign-out-others": (form(ANY_USER, changes=False),),
    f"{TENANT_SLUG}/": (Page(TENANT_READ),),
    f"{TENANT_SLUG}/members": (Page(TENANT_READ),),
    f"{TENANT_SLUG}/members/add": (form(TENANT_MANAGE, username="gina", role="viewer"),),
    f"{TENANT_SLUG}/members/<str:username>": (form(TENANT_MANAGE, role="researcher"),),
    f"{TENANT_SLUG}/usage": (Page(TENANT_READ),),
    f"{TENANT_SLUG}/usage.csv": (Page(TENANT_READ),),
    f"{TENANT_SLUG}/audit": (Page(TENANT_MANAGE),),
    f"{TENANT_SLUG}/tokens": (Page(TENANT_READ),),
    f"{TENANT_SLUG}/tokens/new": (
        form(rule(outside=404, admin=403), name="laptop", days="30", role="viewer"),
        form(TENANT_MANAGE, name="nightly", days="30", account="ci"),
    ),
    f"{TENANT_SLUG}/tokens/accounts": (form(TENANT_MANAGE, name="deploy"),),
    f"{TENANT_SLUG}/tokens/accounts/<str:name>/close": (form(TENANT_MANAGE),),
    f"{TENANT_SLUG}/tokens/<str:token_id>/revoke": (
        form(rule(outside=404, viewer=403, colleague=403, manager=403, admin=403)),
    ),
    f"{TENANT_SLUG}/projects": (Page(TENANT_READ),),
    f"{TENANT_SLUG}/projects/change": (
        form(TENANT_MANAGE, seen="[]", new="vision", reason="matrix", do="apply"),
    ),
    f"{TENANT_SLUG}/projects/undo": (form(TENANT_MANAGE, change_set="change_set"),),
    f"{TENANT_SLUG}/secrets": (Page(rule(outside=404, viewer=403)),),
    f"{TENANT_SLUG}/secrets/set": (form(TENANT_MANAGE, name="hf", value="matrix-matrix"),),
    f"{TENANT_SLUG}/secrets/delete": (form(TENANT_MANAGE, name="tenant_secret"),),
    f"{TENANT_SLUG}/queue": (Page(TENANT_READ),),
    f"{TENANT_SLUG}/jobs": (Page(TENANT_READ),),
    f"{TENANT_SLUG}/attention": (
        form(TENANT_READ, act="dismiss", job="failed"),
        form(TENANT_READ, changes=False, act="restore", job="failed"),
    ),
    f"{TENANT_SLUG}/jobs/new": (Page(TENANT_SUBMIT),),
    f"{TENANT_SLUG}/jobs/views": (
        form(TENANT_READ, act="save", name="Sweeps", tag="sweep"),
        replace(form(OWN_THING, act="rename", view="view_id", name="Of another"), note="a view of one's own"),
        replace(form(TENANT_MANAGE, act="delete", view="shared_view_id"), note="a shared view"),
    ),
    f"{TENANT_SLUG}/jobs/compare": (form(TENANT_READ, changes=False, job="running"),),
    f"{TENANT_SLUG}/compare": (Page(TENANT_READ),),
    f"{TENANT_SLUG}/jobs/halt": (form(TENANT_OPERATE, job="running", confirmed="yes"),),
    f"{TENANT_SLUG}/jobs/resume": (form(TENANT_OPERATE, job="halted"),),
    f"{TENANT_SLUG}/jobs/cancel": (form(TENANT_OPERATE, job="running"),),
    f"{TENANT_SLUG}/jobs/delete": (form(TENANT_OPERATE, job="done"),),
    f"{TENANT_SLUG}/jobs/tag": (form(TENANT_OPERATE, job="running", new_tags="x"),),
    f"^{JOB_PAGE}$": (Page(JOB_READ),),
    f"^{JOB_PAGE}/(?P<verb>halt|checkpoint|resume|cancel)$": (
        form(JOB_OPERATE, {"verb": "halt_verb"}, confirmed="yes"),
        form(JOB_OPERATE, {"verb": "checkpoint_verb"}),
        form(JOB_OPERATE, {"verb": "cancel_verb"}),
        form(JOB_OPERATE, {"verb": "resume_verb", "job_id": "halted"}),
    ),
    f"^{JOB_PAGE}/peek$": (Page(JOB_READ),),
    f"^{JOB_PAGE}/edit$": (
        Page(JOB_DECIDE),
        form(JOB_DECIDE, name="renamed", tags="x", priority="normal"),
    ),
    f"^{JOB_PAGE}/(?P<manage_verb>share|unshare|delete)$": (
        form(JOB_DECIDE, {"manage_verb": "share_verb"}, username="bob", permission="view"),
        form(JOB_DECIDE, {"manage_verb": "unshare_verb"}, username="guest"),
        form(JOB_DECIDE, {"manage_verb": "delete_verb", "job_id": "done"}),
    ),
    f"^{JOB_PAGE}/(?P<tab>metrics|logs|learners|events|checkpoints|spec)$": tuple(
        Page(JOB_READ, things={"tab": f"{tab}_tab"}) for tab in TABS
    ),
    f"{CONSOLE}": (Page(CONSOLE_ONLY),),
    f"{CONSOLE}system": (Page(CONSOLE_ONLY),),
    f"{CONSOLE}tenants": (Page(CONSOLE_ONLY),),
    f"{CONSOLE}tenants/new": (
        Page(CONSOLE_ONLY),
        form(CONSOLE_ONLY, name="Speech", slug="speech", reason="matrix", manager="dave"),
    ),
    f"{CONSOLE}tenants/<slug:slug>": (Page(CONSOLE_ONLY),),
    f"{CONSOLE}tenants/<slug:slug>/state": (form(CONSOLE_ONLY, state="suspended", reason="matrix"),),
    f"{CONSOLE}tenants/<slug:slug>/images": (
        Page(CONSOLE_ONLY),
        form(CONSOLE_ONLY, changes=False, reason="matrix"),
    ),
    f"{CONSOLE}tenants/<slug:slug>/storage": (
        Page(CONSOLE_ONLY),
        form(CONSOLE_ONLY, changes=False, limit="500Gi", reason="matrix"),
    ),
    f"{CONSOLE}tenants/<slug:slug>/retention": (
        Page(CONSOLE_ONLY),
        form(CONSOLE_ONLY, changes=False, verb="preview"),
    ),
    f"{CONSOLE}tenants/<slug:slug>/members": (form(CONSOLE_ONLY, username="gina", role="viewer"),),
    f"{CONSOLE}quotas": (Page(CONSOLE_ONLY), form(CONSOLE_ONLY, changes=False)),
    f"{CONSOLE}fairness": (Page(CONSOLE_ONLY),),
    f"{CONSOLE}fairness.csv": (Page(CONSOLE_ONLY),),
    f"{CONSOLE}quota-history": (Page(CONSOLE_ONLY),),
    f"{CONSOLE}quota-history.csv": (Page(CONSOLE_ONLY),),
    f"{CONSOLE}runtimes": (Page(CONSOLE_ONLY), form(CONSOLE_ONLY, slug="speech", requirements="tqdm")),
    f"{CONSOLE}runtimes/<slug:slug>": (form(CONSOLE_ONLY, {"slug": "runtime"}, verb="disable"),),
    f"{CONSOLE}users": (Page(CONSOLE_ONLY),),
    f"{CONSOLE}new-user": (Page(CONSOLE_ONLY), form(CONSOLE_ONLY, username="erin2")),
    f"{CONSOLE}users/<str:username>": (Page(CONSOLE_ONLY),),
    f"{CONSOLE}users/<str:username>/edit": (form(CONSOLE_ONLY, is_superuser="on"),),
    f"{CONSOLE}groups": (
        Page(CONSOLE_ONLY),
        form(CONSOLE_ONLY, text="vision-lab viewer everyone", etag=version([]), save="yes"),
    ),
    f"{CONSOLE}users/<str:username>/identity": (form(CONSOLE_ONLY, subject="owner-there"),),
    f"{CONSOLE}users/<str:username>/sessions": (form(CONSOLE_ONLY, {"username": "owner"}, tokens="yes"),),
    f"{CONSOLE}users/<str:username>/<slug:verb>": (form(CONSOLE_ONLY, {"verb": "disable_verb"}),),
    f"{CONSOLE}audit": (Page(CONSOLE_ONLY),),
    "agent/v1/job": (FOR_LEARNERS,),
    "agent/v1/code": (FOR_LEARNERS,),
    "agent/v1/checkpoints/<int:n>/files/<int:file_id>": (FOR_LEARNERS,),
    "agent/v1/checkpoints/<int:n>/verify": (FOR_LEARNERS,),
    "agent/v1/results/<int:file_id>": (FOR_LEARNERS,),
    "agent/v1/uploads/<int:blob_id>": (FOR_LEARNERS,),
    "agent/v1/uploads/<int:blob_id>/finish": (FOR_LEARNERS,),
    "agent/v1/uploads/<int:blob_id>/parts": (FOR_LEARNERS,),
}


CHANNELS: dict[Topic, tuple[str, Rule]] = {
    Topic.JOB: ("job:{running}", JOB_READ),
    Topic.LOGS: ("job:{running}:logs:1:0", JOB_READ),
    Topic.METRICS: ("job:{running}:metrics", JOB_READ),
    Topic.JOBS: ("tenant:{t}:jobs", TENANT_READ),
    Topic.QUOTAS: ("tenant:{t}:quotas", TENANT_READ),
    Topic.CLUSTER: ("cluster", ANY_USER),
}
"""Channels of the live socket: a name, and who may watch it."""
