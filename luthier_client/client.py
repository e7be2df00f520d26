"""Requests to the REST API with a token, the errors they can have, and jobs by id, prefix or name."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, NoReturn
from urllib.parse import quote, urlencode, urlsplit

TIMEOUT_S = 60.0
FOLLOW_EVERY_S = 1.0
PAGE = 200
TAIL_MAX = 5_000
SHOWN = 5  # jobs that a sentence about several of them names
ID_CHARS = 12
CROCKFORD = frozenset("0123456789abcdefghjkmnpqrstvwxyz")
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELED", "HALTED"})


class ClientError(Exception):
    """A sentence for people; code and problem are those of the response, if there was one."""

    def __init__(self, message: str, code: str = "", problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.problem = dict(problem or {})


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes


Note = Callable[[str], None]
Send = Callable[[str, str, bytes, Mapping[str, str], IO[bytes] | None], Reply]
"""(method, path below /api/v1 with its query, body, headers, into) -> the reply, whatever its status. The bytes of a
success are written to `into`, if it is given: a download may be larger than the memory."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to wherever it points."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def over_http(url: str, timeout_s: float = TIMEOUT_S) -> Send:
    """Sends requests to the platform at this address. Raises ClientError for an address that is none."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or parts.query:
        raise ClientError(
            f"LUTHIER_URL is {url or 'not set'}: give the platform's address without a path,"
            " such as http://127.0.0.1:8000"
        )
    base = f"{parts.scheme}://{parts.netloc}/api/v1"
    opener = urllib.request.build_opener(_NoRedirect)

    def send(
        method: str, path: str, body: bytes, headers: Mapping[str, str], into: IO[bytes] | None = None
    ) -> Reply:
        request = urllib.request.Request(base + path, body or None, dict(headers), method=method)
        try:
            with opener.open(request, timeout=timeout_s) as response:
                if into is None:
                    return Reply(response.status, response.read())
                shutil.copyfileobj(response, into)
                return Reply(response.status, b"")
        except urllib.error.HTTPError as error:
            return Reply(error.code, error.read())
        except (OSError, http.client.HTTPException) as error:
            raise ClientError(f"{base} does not respond: {getattr(error, 'reason', error)}") from error

    return send


class Client:
    """One caller of one installation. Methods that take a job accept its id, a unique prefix of it, or a name."""

    def __init__(self, url: str = "", token: str = "", send: Send | None = None) -> None:
        """url and token: by default those in LUTHIER_URL and LUTHIER_TOKEN."""
        self._token = token or os.environ.get("LUTHIER_TOKEN", "")
        self._send = send or over_http(url or os.environ.get("LUTHIER_URL", ""))
        if not self._token:
            raise ClientError("LUTHIER_TOKEN is not set: create an API token in the portal")

    def raw(
        self, method: str, path: str, body: bytes = b"", kind: str = "", into: IO[bytes] | None = None
    ) -> bytes:
        """The bytes of a response, or nothing if they are written to `into`. Raises ClientError."""
        headers = {"Authorization": f"Bearer {self._token}"}
        if kind:
            headers["Content-Type"] = kind
        if method == "POST":
            headers["Idempotency-Key"] = secrets.token_hex(16)
        reply = self._send(method, path, body, headers, into)
        if reply.status >= 300:  # the first status that is no success
            _refused(reply)
        return reply.body

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The JSON of a response, None of an empty one. Parameters that are None are left out."""
        given = {name: value for name, value in query.items() if value is not None}
        asked = f"{path}?{urlencode(given, doseq=True)}" if given else path
        sent = b"" if body is None else json.dumps(body).encode()
        answer = self.raw(method, asked, sent, "application/json" if sent else "")
        return json.loads(answer) if answer else None

    def items(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Every item of a list, page by page."""
        cursor = None
        while True:
            page = self.call("GET", path, page_size=PAGE, cursor=cursor, **query)
            yield from page["items"]
            cursor = page["next"]
            if cursor is None:
                return

    def tenant(self) -> str:
        """The caller's tenant, if there is exactly one."""
        slugs = [each["slug"] for each in self.call("GET", "/me")["tenants"]]
        if len(slugs) != 1:
            known = ", ".join(slugs) or "you are a member of none"
            raise ClientError(f"Name the tenant: {known}")
        return str(slugs[0])

    def find(self, wanted: str) -> dict[str, Any]:
        """The job with this id, or of the caller's own tenants the only one whose id begins so, or the newest with this
        name: one that others share, or that only an administrator sees, needs its whole id.

        Raises ClientError for none, for several with the prefix, and if one job's name is the beginning of another's
        id: what is halted or deleted must be the one that was meant.
        """
        if len(wanted) == ID_CHARS and set(wanted) <= CROCKFORD:
            try:
                return dict(self.call("GET", f"/jobs/{wanted}"))
            except ClientError as error:
                if error.code != "not_found":
                    raise  # a name may look like an id
        if not wanted:
            raise ClientError("Give a job's id, the beginning of one, or a name")
        begin: list[dict[str, Any]] = []
        named: dict[str, Any] | None = None
        own = {each["slug"] for each in self.call("GET", "/me")["tenants"] if each["role"]}
        for job in self.items("/jobs", q=wanted, order="newest"):
            if job["tenant"] not in own:
                continue
            if set(wanted) <= CROCKFORD and job["id"].startswith(wanted):
                begin.append(job)
            if job["name"] == wanted and (named is None or job["created_at"] > named["created_at"]):
                named = job  # ids of one second are in no order
        found = begin if named is None else [*begin, named]
        if not found:
            raise ClientError(f"No job has the id or the name {wanted}", code="not_found")
        if named is not None and not begin:
            return named
        if len({job["id"] for job in found}) == 1:
            return found[0]
        several = ", ".join(f"{job['id']} ({job['name']})" for job in found[:SHOWN])
        raise ClientError(f"{wanted} may be any of several jobs: {several}; give more of the id")

    def submit(self, tenant: str, spec: bytes, kind: str = "application/yaml") -> dict[str, Any]:
        """Submit a spec as it is written; the new job."""
        answer = self.raw("POST", f"/tenants/{quote(tenant, safe='')}/jobs", spec, kind)
        return dict(json.loads(answer))

    def validate(self, tenant: str, spec: bytes, kind: str = "application/yaml") -> dict[str, Any]:
        """What a submission would say, without one."""
        answer = self.raw("POST", f"/tenants/{quote(tenant, safe='')}/jobs:validate", spec, kind)
        return dict(json.loads(answer))

    def act(self, wanted: str, verb: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """halt, resume, cancel or clone; the job, of a clone the new one."""
        return dict(self.call("POST", f"/jobs/{self.find(wanted)['id']}/{verb}", dict(body or {})))

    def delete(self, wanted: str) -> None:
        """Delete a job that has ended."""
        self.call("DELETE", f"/jobs/{self.find(wanted)['id']}")

    def lines(
        self,
        wanted: str,
        *,
        learner: int = 0,
        attempt: int | None = None,
        tail: int | None = None,
        follow: bool = False,
        note: Note = lambda _: None,
    ) -> Iterator[dict[str, Any]]:
        """The lines of a learner's log, from the beginning or the last of them.

        follow: also what is printed from now on, until that attempt has printed everything. note: gets a sentence for
        each gap.
        """
        job = self.find(wanted)["id"]
        where: dict[str, Any] = {"after": 0}
        if tail is not None:
            if not 1 <= tail <= TAIL_MAX:
                raise ClientError(f"The last lines: from 1 to {TAIL_MAX} at a time")
            where = {"tail": tail, "limit": tail}
        is_over = False
        while True:
            page = self.call("GET", f"/jobs/{job}/logs", learner=learner, attempt=attempt, **where)
            for gap in page["gaps"]:
                note(f"Lines {gap['from']} to {gap['to']} were not stored.")
            yield from page["lines"]
            attempt = page["attempt"] or attempt  # a later attempt has a log of its own
            if "tail" not in where or page["lines"]:
                where = {"after": page["next"]}
            if page["more"]:
                continue
            if not follow or page["sealed"] or is_over:
                return
            # The log of a job that never printed is not sealed. What came since the page is read before the end.
            is_over = not page["lines"] and self.call("GET", f"/jobs/{job}")["state"] in ENDED
            if not is_over:
                time.sleep(FOLLOW_EVERY_S)


def _refused(reply: Reply) -> NoReturn:
    try:
        problem = json.loads(reply.body)
        code, words = str(problem["code"]), [str(problem["detail"])]
        wrong = [f"{each['path']}: {each['message']}" for each in problem.get("errors", [])]
    except (ValueError, KeyError, TypeError):
        raise ClientError(f"The server answered {reply.status}; is LUTHIER_URL the platform?") from None
    raise ClientError("\n  ".join(words + wrong), code, problem)
