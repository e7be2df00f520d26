"""`/ws/v1/live`: one socket per tab, channels by subscription, served by the hub.

docs/api.md lists the codes with which it closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Collection
from typing import Any

from asgiref.typing import WebSocketSendEvent
from channels.generic.websocket import AsyncWebsocketConsumer

from learner_agent.wire import CloseCode
from portal import strangers
from portal.live.frames import PONG, StoreDown, error_text
from portal.live.identity import AccessLevel, Credentials, access_level, credentials, who
from portal.live.protocol import BadFrame, Request, parse_channel, parse_request
from portal.live.socket import REFUSALS, authenticated, close_reason, direct_write
from portal.live.viewer import Viewer
from portal.live.viewer_hub import ViewerHub, hub
from tenants.models import User

logger = logging.getLogger(__name__)

CHANNELS_MAX = 64  # per socket
SOCKETS_MAX = 100  # per person and web process
FRAMES_PER_S, FRAMES_BURST = 20.0, 200.0
NOT_FOUND = "There is no such channel, or you cannot see it."

REFUSALS_LOGGED = 20
"""Of one socket: no client fills the log, which would lose what others did."""

_sockets: Counter[int] = Counter()


class LiveConsumer(AsyncWebsocketConsumer):
    """A viewer's socket. It has no state besides its cursors."""

    channel_layer_alias = None  # type: ignore[assignment]  # the hub receives hints, once per process

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.viewer: Viewer | None = None
        self.user: User | None = None
        self.name = ""  # of who it was opened by, when the session has ended, too
        self.refusals = 0
        self.counted_for: int | None = None
        self.tasks: list[asyncio.Task[None]] = []
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._end()  # also when the server cancels the task

    async def connect(self) -> None:
        self.allowance, self.counted_at = FRAMES_BURST, time.monotonic()
        self.hub: ViewerHub = hub()
        await self.accept()
        self.known: Credentials = credentials(list(self.scope["headers"]), self.scope["query_string"])
        if self.known.foreign:
            await self.close(CloseCode.FORBIDDEN, "Another site cannot use your session.")
            return
        viewer = Viewer(self._send, direct_write(self.scope))
        await self.hub.join(viewer)
        self.viewer = viewer
        viewer.cut = self._cut
        try:
            self.user = await self.hub.in_side_reader(who, self.known)
        except StoreDown:
            await self.close(CloseCode.TRY_LATER, "The database is not responding; try again.")
            return
        if self.user is None:
            await self.close(CloseCode.UNAUTHORIZED, "Sign in, or send a valid token.")
            return
        self.counted_for, self.name = self.user.pk, self.user.get_username()
        _sockets[self.user.pk] += 1
        if _sockets[self.user.pk] > SOCKETS_MAX:  # it counts for its address, too, until its client is gone
            await self.close(CloseCode.TRY_LATER, f"You have {SOCKETS_MAX} sockets open, the most allowed.")
            return
        authenticated(self.scope)
        self.tasks = [asyncio.create_task(self._empty(viewer))]
        self.hub.guarded.add(self)

    async def close(self, code: int | bool | None = None, reason: str | None = None) -> None:
        if code in REFUSALS or (code == CloseCode.TRY_LATER and self.user):  # without: the database is away
            over = code == CloseCode.UNAUTHORIZED and self.name
            self._log_refusal(
                "socket's session ended" if over else "socket refused", code=int(code or 0), why=reason
            )
        await super().close(code, close_reason(reason or ""))

    def _log_refusal(self, what: str, **fields: object) -> None:
        self.refusals += 1
        if self.refusals > REFUSALS_LOGGED:
            return
        client = self.scope.get("client")
        address = client[0] if client else ""
        if self.name:
            logger.warning(what, extra=fields | {"user": self.name, "address": address})
        else:
            strangers.warn(logger, what, address, **fields, user="")

    async def _end(self) -> None:
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.counted_for is not None:
            _sockets[self.counted_for] -= 1
            if not _sockets[self.counted_for]:
                del _sockets[self.counted_for]
        if self.viewer is not None:
            self.hub.guarded.discard(self)
            await self.hub.leave(self.viewer)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        viewer = self.viewer
        if viewer is None or self.user is None or not self.tasks:
            return
        if not self._within_rate():
            await self.close(CloseCode.TRY_LATER, f"At most {FRAMES_PER_S:g} frames a second.")
            return
        try:
            if text_data is None:
                raise BadFrame("Frames are text.")
            request = parse_request(text_data)
        except BadFrame as error:
            await self.close(CloseCode.BAD_FRAME, str(error))
            return
        if request.op == "ping":
            if viewer.has_room(len(PONG)):
                viewer.put(PONG)
        elif request.op == "unsub":
            self.hub.unsubscribe(viewer, request.name)
        else:
            await self._subscribe(viewer, self.user, request)

    async def _subscribe(self, viewer: Viewer, user: User, request: Request) -> None:
        if len(viewer.subscriptions) >= CHANNELS_MAX and request.name not in viewer.subscriptions:
            self._refuse(
                viewer,
                request.name,
                "too_many_channels",
                f"A socket carries at most {CHANNELS_MAX} channels.",
            )
            return
        channel, level = parse_channel(request.name), None
        try:
            if channel is not None:
                level = await self.hub.in_side_reader(access_level, user, channel, self.known.reason)
        except StoreDown:
            self._refuse(
                viewer, request.name, "unavailable", "The database is not responding; subscribe again."
            )
            return
        if channel is None or level is None:
            self.hub.unsubscribe(viewer, request.name)
            self._log_refusal("channel refused", channel=request.name[:100])
            self._refuse(viewer, request.name, "not_found", NOT_FOUND)
            return
        self.hub.subscribe(viewer, channel, request.after, redacted=level is AccessLevel.GUEST)

    def _refuse(self, viewer: Viewer, ch: str, code: str, message: str) -> None:
        viewer.put(error_text(ch, code, message))

    def _within_rate(self) -> bool:
        now = time.monotonic()
        self.allowance = min(FRAMES_BURST, self.allowance + (now - self.counted_at) * FRAMES_PER_S)
        self.counted_at = now
        self.allowance -= 1
        return self.allowance >= 0

    async def _send(self, text: bytes) -> None:
        """Bypass Channels, which costs three more calls per frame."""
        event: WebSocketSendEvent = {"type": "websocket.send", "bytes": None, "text": text.decode()}
        await self.base_send(event)

    async def _empty(self, viewer: Viewer) -> None:
        """Send until the socket is gone; `disconnect` is called anyway."""
        with contextlib.suppress(Exception):
            await viewer.send_queued()

    def _cut(self, code: CloseCode, reason: str) -> None:
        """Close a socket at once: if the client reads nothing, the close frame may never be sent."""
        if self.tasks:
            self.tasks[0].cancel()
            self.tasks.append(asyncio.create_task(self._close_quietly(code, reason)))

    async def _close_quietly(self, code: CloseCode, reason: str) -> None:
        with contextlib.suppress(Exception):
            await self.close(code, reason)

    @property
    def watched(self) -> Collection[str]:
        return self.viewer.subscriptions if self.viewer is not None else ()

    def access_checked(self, user: User | None, lost: set[str]) -> None:
        """Called by the guard: the current user, and the channels that they may no longer watch."""
        self.user = user
        if user is None and self.tasks:
            self.hub.guarded.discard(self)
            text = "Your session has ended, or your token is no longer valid."
            self.tasks.append(asyncio.create_task(self._close_quietly(CloseCode.UNAUTHORIZED, text)))
        elif self.viewer is not None:
            self._drop(self.viewer, [name for name in lost if name in self.viewer.subscriptions])

    def _drop(self, viewer: Viewer, names: list[str]) -> None:
        for name in names:
            self.hub.unsubscribe(viewer, name)
            self._refuse(viewer, name, "not_found", NOT_FOUND)


class NoSuchSocket(AsyncWebsocketConsumer):
    """Every other path: closed with a code that a browser can read."""

    channel_layer_alias = None  # type: ignore[assignment]  # Channels: no layer

    async def connect(self) -> None:
        await self.accept()
        await self.close(CloseCode.NO_SUCH_SOCKET, "There is no such socket.")
