"""Bodies before they reach a view: as large, as fast and from whom the path needs it."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.files.uploadedfile import SimpleUploadedFile, UploadedFile
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import re_path

from jobs import blobs
from jobs.archives import DEFAULT_LIMITS
from jobs.models import Job
from portal import asgi_handler, request_body
from portal.arrivals import AT_ONCE, COPIES, Sender, sender_of
from portal.asgi_handler import ThreadedHandler
from portal.live.identity import caller
from portal.request_body import ANONYMOUS_BYTES, OTHER_BYTES, cap_of
from tenants.models import Token, User
from tenants.roles import Role
from tests import factories

CHUNK = 64 * 1024
UPLOADS = "/api/v1/tenants/vision/uploads"
PIECES = "/agent/v1/uploads/7"


def digest(request: HttpRequest, **path: str) -> HttpResponse:
    return HttpResponse(hashlib.sha256(request.read()).hexdigest())


urlpatterns = [re_path(r"", digest)]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether callers are known: its last entry."""
    answers = [False]

    def sender_of(scope: Any) -> Sender | None:
        return Sender(7 if scope["path"] == UPLOADS else None, True, 2**40) if answers[-1] else None

    monkeypatch.setattr(asgi_handler, "_sender", sender_of)
    with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=[], ALLOWED_HOSTS=["*"]):
        yield answers


@dataclass
class Sent:
    """A request whose body is taken from it in chunks."""

    path: str
    size: int
    declares: bool = True
    taken: int = 0
    stalls_after: int | None = None
    handler: ThreadedHandler | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    response: list[Any] = field(default_factory=list)

    async def receive(self) -> Any:
        if self.stalls_after is not None and self.taken >= self.stalls_after:
            await asyncio.sleep(3600)
        chunk = bytes(min(CHUNK, self.size - self.taken))
        self.taken += len(chunk)
        return {"type": "http.request", "body": chunk, "more_body": self.taken < self.size}

    async def send(self, message: Any) -> None:
        self.response.append((self.taken, message))

    async def run(self) -> tuple[int, bytes]:
        headers = [(b"content-length", str(self.size).encode())] if self.declares else []
        headers += self.headers
        scope = {"type": "http", "method": "POST", "path": self.path, "headers": headers, "query_string": b""}
        await (self.handler or ThreadedHandler()).handle(
            scope | {"http_version": "1.1"}, self.receive, self.send
        )
        return self.response[0][1]["status"], b"".join(part["body"] for _, part in self.response[1:])

    @property
    def taken_before_response(self) -> int:
        return int(self.response[0][0])

    @property
    def closes(self) -> bool:
        return (b"Connection", b"close") in self.response[0][1]["headers"]


async def test_a_large_body_of_a_stranger_is_refused_unread(known: list[bool]) -> None:
    sender = Sent(UPLOADS, 200 * 1024**2)
    status, body = await sender.run()
    assert (status, json.loads(body)["code"]) == (401, "not_authenticated")
    assert sender.taken_before_response == 0
    assert sender.closes


async def test_a_chunked_body_of_a_stranger_is_refused_at_the_strangers_share(known: list[bool]) -> None:
    sender = Sent(UPLOADS, 200 * 1024**2, declares=False)
    assert (await sender.run())[0] == 401
    assert sender.taken_before_response <= ANONYMOUS_BYTES + CHUNK
    assert sender.taken <= ANONYMOUS_BYTES + CHUNK + request_body.LINGER_BYTES + CHUNK


@pytest.mark.parametrize("path", [UPLOADS, "/api/v1/tenants/vision/jobs", "/agent/v1/uploads/7", "/login"])
@pytest.mark.parametrize("declares", [True, False])
async def test_no_caller_sends_more_than_the_path_needs(known: list[bool], path: str, declares: bool) -> None:
    known.append(True)
    sender = Sent(path, 300 * 1024**2, declares=declares)
    status, body = await sender.run()
    assert status == 413
    assert sender.taken_before_response <= (0 if declares else cap_of(path) + CHUNK)
    assert b"at most" in body


async def test_a_known_caller_uploads_a_large_file_whole(known: list[bool]) -> None:
    known.append(True)
    for declares in (True, False):
        status, body = await Sent(UPLOADS, 40 * 1024**2, declares=declares).run()
        assert (status, body.decode()) == (200, hashlib.sha256(bytes(40 * 1024**2)).hexdigest())


async def test_a_user_has_two_uploads_under_way_at_most(known: list[bool]) -> None:
    known.append(True)
    handler = ThreadedHandler()
    stalled = [Sent(UPLOADS, 10 * 1024**2, stalls_after=CHUNK, handler=handler) for _ in range(AT_ONCE)]
    running = [asyncio.create_task(sent.run()) for sent in stalled]
    while not all(sent.taken for sent in stalled):
        await asyncio.sleep(0.01)
    third = Sent(UPLOADS, 10 * 1024**2, handler=handler)
    status, body = await third.run()
    assert (status, json.loads(body)["code"], third.taken_before_response) == (429, "too_many_requests", 0)
    assert b"Retry-After" in dict(third.response[0][1]["headers"])
    assert (await Sent("/api/v1/jobs", OTHER_BYTES, handler=handler).run())[0] == 200, (
        "no other request waits"
    )
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert (await Sent(UPLOADS, 10 * 1024**2, handler=handler).run())[0] == 200


@pytest.mark.parametrize("declares", [True, False])
async def test_an_upload_for_which_the_disk_has_no_room_is_refused_unread(
    known: list[bool], monkeypatch: pytest.MonkeyPatch, declares: bool
) -> None:
    size = 10 * 1024**2
    reserved = COPIES * (size if declares else cap_of(UPLOADS))
    for room, refused in ((reserved - 1, True), (reserved, False)):
        monkeypatch.setattr(asgi_handler, "_sender", lambda scope, room=room: Sender(7, True, room))
        sent = Sent(UPLOADS, size, declares=declares)
        status, body = await sent.run()
        assert status == (503 if refused else 200)
        assert not refused or json.loads(body)["code"] == "disk_full"
        assert not refused or sent.taken_before_response <= (0 if declares else ANONYMOUS_BYTES + CHUNK)


async def test_uploads_under_way_reserve_their_room(
    known: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 10 * 1024**2
    users = iter(range(3))
    monkeypatch.setattr(
        asgi_handler, "_sender", lambda scope: Sender(next(users), True, 2 * COPIES * size - 1)
    )
    handler = ThreadedHandler()
    first = Sent(UPLOADS, size, stalls_after=CHUNK, handler=handler)
    running = asyncio.create_task(first.run())
    while not first.taken:
        await asyncio.sleep(0.01)
    assert (await Sent(UPLOADS, size, handler=handler).run())[0] == 503
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (await Sent(UPLOADS, size, handler=handler).run())[0] == 200


@pytest.mark.parametrize("declares", [True, False])
async def test_an_upload_of_one_who_may_not_is_answered_by_the_view_unread(
    known: list[bool], monkeypatch: pytest.MonkeyPatch, declares: bool
) -> None:
    monkeypatch.setattr(asgi_handler, "_sender", lambda scope: Sender(7, False, 2**40))
    sent = Sent(UPLOADS, 100 * 1024**2, declares=declares)
    status, body = await sent.run()
    assert (status, body.decode()) == (200, hashlib.sha256(b"").hexdigest()), "the view, with no body"
    assert sent.taken_before_response <= (0 if declares else ANONYMOUS_BYTES + CHUNK)
    assert sent.closes


@pytest.mark.parametrize(("path", "size"), [(UPLOADS, 10 * 1024**2), (PIECES, blobs.MAX_PIECE)])
async def test_bodies_wait_on_the_disk_of_the_data_folder(
    known: list[bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str, size: int
) -> None:
    known.append(True)
    made: list[str] = []
    really = tempfile.SpooledTemporaryFile

    def spooled(*sizes: int, **options: Any) -> Any:
        made.append(options["dir"])
        return really(*sizes, **options)

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", spooled)
    with override_settings(LUTHIER_DATA=tmp_path):
        assert (await Sent(path, size).run())[0] == 200
    assert made == [str(tmp_path)]


async def test_a_piece_for_which_the_disk_has_no_room_is_refused_to_be_sent_again(
    known: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    known.append(True)
    took: list[int] = []

    def full(self: Any, part: bytes) -> int:
        took.append(len(part))
        if sum(took) > 3 * 1024**2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(part)

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "write", full)
    sent = Sent(PIECES, blobs.MAX_PIECE)
    status, body = await sent.run()
    assert (status, json.loads(body)["code"]) == (503, "disk_full")
    assert b"Retry-After" in dict(sent.response[0][1]["headers"])


def test_a_large_file_of_a_form_waits_there_without_a_name(tmp_path: Path) -> None:
    content = os.urandom(4 * 1024**2)
    with override_settings(LUTHIER_DATA=tmp_path):
        request = RequestFactory().post("/", {"archive": SimpleUploadedFile("code.zip", content)})
        file = request.FILES["archive"]
    assert isinstance(file, UploadedFile)
    assert Path(f"/proc/self/fd/{file.fileno()}").readlink().is_relative_to(tmp_path)
    assert list(tmp_path.iterdir()) == [], "it goes with the process"
    assert (file.name, file.size, file.read()) == ("code.zip", len(content), content)
    request.close()


async def test_small_bodies_need_no_one_to_be_known(known: list[bool]) -> None:
    assert (await Sent("/login", ANONYMOUS_BYTES).run())[0] == 200


async def test_a_body_that_stops_arriving_is_given_up(
    known: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "IDLE_S", 0.1)
    sender = Sent("/login", 30_000, stalls_after=0)
    sender.size, sender.stalls_after = ANONYMOUS_BYTES, 0
    monkeypatch.setattr(request_body, "LINGER_S", 0.1)
    status, body = await sender.run()
    assert status == 408
    assert b"did not arrive in time" in body
    assert sender.closes


async def test_a_body_that_trickles_is_given_up_at_its_total_deadline(
    known: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "START_S", 0.3)
    trickled = 0

    async def trickle() -> Any:
        nonlocal trickled
        await asyncio.sleep(0.02)
        trickled += 1
        return {"type": "http.request", "body": b"x", "more_body": True}

    sender = Sent("/login", 50_000)
    sender.receive = trickle  # type: ignore[method-assign]
    assert (await sender.run())[0] == 408


async def test_without_a_database_no_caller_is_known(
    known: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(scope: Any) -> bool:
        raise OperationalError("connection refused")

    monkeypatch.setattr(asgi_handler, "_sender", away)
    sender = Sent(UPLOADS, 10 * 1024**2)
    status, body = await sender.run()
    assert (status, json.loads(body)["code"]) == (503, "database_unavailable")
    assert sender.taken_before_response == 0


async def test_health_is_answered_in_the_event_loop_while_all_threads_are_busy() -> None:
    handler = ThreadedHandler()
    handler._probes = handler._requests = None  # type: ignore[assignment]
    scope = {"type": "http", "method": "GET", "path": "/healthz", "headers": [], "query_string": b""}
    caller = ApplicationCommunicator(handler, scope | {"http_version": "1.1"})
    assert (await caller.receive_output(20))["status"] == 200
    assert json.loads((await caller.receive_output(20))["body"]) == {"status": "alive"}


def test_caps_are_those_of_the_views() -> None:
    assert cap_of(UPLOADS) > DEFAULT_LIMITS.packed_bytes
    assert cap_of("/agent/v1/uploads/12") == blobs.MAX_PIECE
    assert cap_of("/agent/v1/uploads/12/finish") == cap_of("/api/v1/jobs") == cap_of("/login") == OTHER_BYTES
    assert cap_of("/healthz") == 0


@pytest.mark.django_db
def test_large_uploads_are_wanted_of_those_who_may_submit_in_that_tenant_alone() -> None:
    vision = factories.tenant("vision")
    factories.tenant("other")

    def wanted(user: User, slug: str, **token: Any) -> bool:
        _, secret = Token.objects.create(user=user, name="laptop", expiry=None, **token)
        headers = [(b"authorization", f"Bearer {secret}".encode())]
        sender = sender_of(f"/api/v1/tenants/{slug}/uploads", headers)
        assert sender is not None
        assert sender.user == user.pk
        return sender.is_wanted

    researcher = factories.member(vision, "rita")
    viewer = factories.member(vision, "vera", Role.VIEWER)
    admin = factories.user("root", is_superuser=True)
    assert wanted(researcher, "vision")
    assert not wanted(researcher, "other")
    assert not wanted(researcher, "nowhere")
    assert not wanted(researcher, "vision", role_ceiling=Role.VIEWER)
    assert not wanted(viewer, "vision")
    assert not wanted(admin, "vision")


@pytest.mark.django_db(transaction=True)
@override_settings(ALLOWED_HOSTS=["*"])
def test_a_viewers_archive_is_refused_by_the_view_before_it_is_read() -> None:
    viewer = factories.member(factories.tenant("vision"), "vera", Role.VIEWER)
    _, secret = Token.objects.create(user=viewer, name="laptop", expiry=None)
    headers = [
        (b"authorization", f"Bearer {secret}".encode()), (b"content-type", b"multipart/form-data; boundary=x"),
    ]  # fmt: skip
    handler = ThreadedHandler()
    try:
        for slug, status, code in (("vision", 403, "not_allowed"), ("nowhere", 404, "not_found")):
            path = f"/api/v1/tenants/{slug}/uploads"
            sent = Sent(path, 100 * 1024**2, headers=headers, handler=handler)
            found, body = asyncio.run(sent.run())
            assert (found, json.loads(body)["code"], sent.taken_before_response) == (status, code, 0)
            assert sent.closes
    finally:
        handler._requests.close()


@pytest.mark.django_db
def test_known_are_sessions_tokens_and_learners_and_nothing_else(client: Client) -> None:
    user = factories.user("alice")
    _, secret = Token.objects.create(user=user, name="laptop", expiry=None)
    job = factories.job(state=Job.State.PROCESSING if hasattr(Job, "State") else "PROCESSING")
    learner = factories.secret(job, 1, 0)
    client.force_login(user, backend="tenants.backends.PeopleBackend")
    cookie = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())

    def is_known(path: str, **headers: str) -> bool:
        found = caller(path, [(name.encode(), value.encode()) for name, value in headers.items()])
        return found is not None

    assert is_known(UPLOADS, authorization=f"Bearer {secret}")
    assert is_known(UPLOADS, cookie=cookie)
    assert is_known("/agent/v1/uploads/1", authorization=f"Bearer {learner}")
    assert not is_known(UPLOADS, authorization=f"Bearer {learner}")
    assert not is_known("/agent/v1/uploads/1", authorization=f"Bearer {secret}")
    assert not is_known(UPLOADS, authorization="Bearer lut_wrong", cookie=cookie)
    assert not is_known(UPLOADS)
    client.logout()
    assert not is_known(UPLOADS, cookie=cookie)
