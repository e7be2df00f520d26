"""One hub per event loop: it reads each subscribed channel once and sends the same bytes to all its viewers.

Hints make it fast, and reading the database once a second makes it reliable: without Valkey nothing is lost and a
frame is at most a second late. Without PostgreSQL the sockets stay open and the channels report it. Without viewers the
hub is idle. All methods run in the event loop; the database is read in threads (portal.database.threads).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from jobs import pubsub
from jobs.pubsub import Hint, Subject
from jobs.retries import database_away
from jobs.selectors import heads
from learner_agent.wire import CloseCode
from portal.database import shares
from portal.database.threads import DatabaseThreads
from portal.live import frames
from portal.live.frames import ChannelSource, FrameBatch, ReadRequest, StoreDown, Unreadable
from portal.live.guard import Guard, Watcher
from portal.live.protocol import Channel, Topic
from portal.live.sources import SOURCES
from portal.live.viewer import Delivery, Subscription, Viewer

logger = logging.getLogger(__name__)

SWEEP_S = 1.0  # interval of reads without a hint
BEAT_S = 2.0  # a frame on every socket at least this often, so that a viewer notices a dead connection
MIN_INTERVAL_S = 0.02  # between two reads of a channel, and two queries for a topic
RETRY_S = 1.0  # a background task that failed restarts after this time
STUCK_S = 60.0  # a viewer that accepts no byte for this long is disconnected

T = TypeVar("T")


@dataclass(eq=False)
class ChannelFeed:
    """A subscribed channel.

    head: the number up to which its live viewers were served; None before the first read. served: how often they were.
    """

    channel: Channel
    head: int | None = None
    served: int = 0
    stamp: Any = None
    dirty: bool = False
    due: float = 0.0  # not read again before this time of the loop's clock
    cached_at: float = 0.0  # when it was last served from memory
    down: bool = False
    alone: bool = False  # it could not be read, so it is read separately and does not affect others
    subscriptions: set[Subscription] = field(default_factory=set)


class ViewerHub:
    """Use `hub()` to get the one of the running event loop."""

    def __init__(self) -> None:
        self.viewers: set[Viewer] = set()
        self.guarded: set[Watcher] = set()
        self.feeds: dict[str, ChannelFeed] = {}
        self._wakes: dict[Topic, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._readers: DatabaseThreads | None = None
        self._side_readers: DatabaseThreads | None = None
        self._guard = Guard(lambda: self.guarded, self.in_side_reader)

    # --- viewers ---

    async def join(self, viewer: Viewer) -> None:
        if self._closing is not None:
            await asyncio.wait([self._closing])
        viewer.drained = self._drained
        self.viewers.add(viewer)
        if self._readers is None:
            self._start()

    async def leave(self, viewer: Viewer) -> None:
        self.viewers.discard(viewer)
        for name in list(viewer.subscriptions):
            self.unsubscribe(viewer, name)
        if not self.viewers and self._readers is not None:
            self._closing = asyncio.get_running_loop().create_task(self._stop())
            await asyncio.wait([self._closing])

    def subscribe(
        self, viewer: Viewer, channel: Channel, after: int | None, *, redacted: bool = False
    ) -> None:
        """Serve the viewer from after + 1 (None: from now). A second subscription replaces the first."""
        self.unsubscribe(viewer, channel.name)
        feed = self.feeds.setdefault(channel.name, ChannelFeed(channel))
        subscription = Subscription(viewer, channel.name, -1 if after is None else after, redacted=redacted)
        if after is not None and SOURCES[channel.topic].counts_rows:
            subscription.given, subscription.cursor = after, heads.store_cursor(after)
        viewer.subscriptions[channel.name] = subscription
        feed.subscriptions.add(subscription)
        self._spawn(self._catch_up_or_close(feed, subscription))

    def unsubscribe(self, viewer: Viewer, name: str) -> None:
        subscription = viewer.subscriptions.pop(name, None)
        feed = self.feeds.get(name)
        if subscription is None or feed is None:
            return
        feed.subscriptions.discard(subscription)
        if not feed.subscriptions:
            del self.feeds[name]

    async def in_reader(self, function: Callable[..., T], *arguments: Any) -> T:
        """Read for all viewers that are up to date. Raises StoreDown."""
        return await self._run(self._readers, function, *arguments)

    async def in_side_reader(self, function: Callable[..., T], *arguments: Any) -> T:
        """Read for one viewer, in other threads, so that viewers that are up to date do not wait. Raises StoreDown."""
        return await self._run(self._side_readers, function, *arguments)

    @staticmethod
    async def _run(threads: DatabaseThreads | None, function: Callable[..., T], *arguments: Any) -> T:
        if threads is None:
            raise StoreDown
        try:
            return await threads.run(function, *arguments)
        except Exception as error:  # one bad row must not end the reading for all channels
            if database_away(error):
                raise StoreDown(str(error)) from error
            logger.exception("a channel could not be read")
            raise Unreadable(str(error)) from error

    # --- background tasks ---

    def _start(self) -> None:
        self._readers, self._side_readers = (
            DatabaseThreads(shares.LIVE_READERS, "live-reader"),
            DatabaseThreads(shares.LIVE_SIDE_READERS, "live-side-reader"),
        )
        self._wakes = {topic: asyncio.Event() for topic in SOURCES}
        for topic, source in SOURCES.items():
            self._spawn(self._restart_on_error(partial(self._pump, topic, source)))
        for run in (self._sweep, self._beat, self._subscribe_to_hints, self._guard.run):
            self._spawn(self._restart_on_error(run))

    async def _stop(self) -> None:
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        closing = [readers for readers in (self._readers, self._side_readers) if readers is not None]
        self._readers = self._side_readers = None
        for readers in closing:
            await asyncio.to_thread(readers.close)
        self._closing = None
        if self.viewers:  # a viewer joined meanwhile
            self._start()

    @staticmethod
    async def _restart_on_error(run: Callable[[], Awaitable[None]]) -> None:
        """Run a background task until cancelled; after an error it restarts in RETRY_S."""
        while True:
            try:
                await run()
            except Exception:
                logger.exception("a background task of the hub failed and restarts")
            await asyncio.sleep(RETRY_S)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("a task of the hub failed", exc_info=error)

    async def _subscribe_to_hints(self) -> None:
        loop = asyncio.get_running_loop()

        def on_hint(hint: Hint) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there are no viewers
                loop.call_soon_threadsafe(self.on_hint, hint)

        async with pubsub.subscribed(on_hint):
            await asyncio.Event().wait()

    def on_hint(self, hint: Hint) -> None:
        """Mark the channels of a hint as changed."""
        match hint.subject:
            case Subject.LOGS:
                self._mark(f"job:{hint.job_id}:logs:{hint.attempt}:{hint.rank}")
            case Subject.METRICS:
                self._mark(
                    f"job:{hint.job_id}:metrics"
                )  # the job's own channel is read by the sweep, once a second
            case Subject.JOB:
                self._mark(f"job:{hint.job_id}")
                self._mark_topics((Topic.JOBS, Topic.QUOTAS))
            case Subject.QUOTAS:
                self._mark_topics((Topic.QUOTAS,))
            case Subject.CLUSTER:
                self._mark("cluster")
            case Subject.ACCESS:
                self._guard.check_soon()

    def _mark(self, name: str) -> None:
        if feed := self.feeds.get(name):
            feed.dirty = True
            self._wakes[feed.channel.topic].set()

    def _mark_topics(self, topics: Iterable[Topic]) -> None:
        for feed in list(self.feeds.values()):
            if feed.channel.topic in topics:
                self._mark(feed.channel.name)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            fresh = asyncio.get_running_loop().time() - SWEEP_S
            for feed in list(self.feeds.values()):
                if feed.cached_at < fresh:
                    self._mark(feed.channel.name)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            now = time.monotonic()
            for viewer in list(self.viewers):
                viewer.beat(now, BEAT_S)
                if viewer.sending_since is not None and now - viewer.sending_since > STUCK_S:
                    viewer.cut(CloseCode.SILENT, "The client reads too slowly.")

    # --- reading ---

    async def _pump(self, topic: Topic, source: ChannelSource) -> None:
        """Read the channels that have changed: from memory in the loop itself, from the database in a thread."""
        wake, loop = self._wakes[topic], asyncio.get_running_loop()
        store_due = 0.0
        while True:
            await wake.wait()
            wake.clear()
            requests: list[ReadRequest] = []
            alone: list[ReadRequest] = []
            later: list[float] = []
            for feed in [feed for feed in self.feeds.values() if feed.dirty and feed.channel.topic is topic]:
                now = loop.time()
                if feed.due > now:
                    later.append(feed.due)
                    continue
                feed.dirty, feed.due = False, now + MIN_INTERVAL_S
                if feed.head is None:
                    continue
                request = ReadRequest(feed.channel, feed.head, feed.stamp)
                if (page := _cached(source, request)) is not None:
                    feed.cached_at = now
                    self._deliver(feed, page)
                    await asyncio.sleep(0)  # let the sockets send
                elif now < store_due:
                    feed.dirty, feed.due = True, store_due
                    later.append(store_due)
                else:
                    (alone if feed.alone else requests).append(request)
            if requests:
                await self._read(source, requests)
            for request in alone:
                await self._read(source, [request])
            if requests or alone:
                store_due = loop.time() + MIN_INTERVAL_S
            if later:
                loop.call_at(min(later), wake.set)

    async def _read(self, source: ChannelSource, requests: list[ReadRequest]) -> None:
        """Read channels together. One that cannot be read is found by halving, so that the others are not affected."""
        try:
            pages = await self.in_reader(source.read, requests)
        except Unreadable as error:
            if len(requests) > 1:
                middle = len(requests) // 2
                await self._read(source, requests[:middle])
                await self._read(source, requests[middle:])
            elif (feed := self.feeds.get(requests[0].channel.name)) is not None:
                feed.alone = True
                self._report_down(feed, error)
                feed.due = asyncio.get_running_loop().time() + SWEEP_S
            return
        except StoreDown as error:
            for request in requests:
                if (feed := self.feeds.get(request.channel.name)) is not None:
                    self._report_down(feed, error)
            await asyncio.sleep(SWEEP_S)
            return
        for request in requests:
            found, page = self.feeds.get(request.channel.name), pages.get(request.channel.name)
            if found is not None and page is not None and found.head == request.after:
                self._deliver(found, page)

    def _deliver(self, feed: ChannelFeed, page: FrameBatch) -> None:
        self._report_up(feed)
        feed.alone = False
        feed.stamp = page.stamp
        for frame in page.frames:
            for subscription in feed.subscriptions:
                subscription.offer(frame)
        feed.head = page.head
        feed.served += bool(page.frames)
        if page.more:
            self._mark(feed.channel.name)

    async def _catch_up_or_close(self, feed: ChannelFeed, subscription: Subscription) -> None:
        """Catch up, or close the socket: a viewer that silently stays behind would look live."""
        try:
            await self._catch_up(feed, subscription)
        except Exception:
            logger.exception("a viewer could not catch up and is disconnected")
            subscription.viewer.cut(
                CloseCode.SERVER_ERROR, "Something went wrong on the server; connect again."
            )

    async def _catch_up(self, feed: ChannelFeed, subscription: Subscription) -> None:
        """Read for one subscription until it has reached the others, as fast as its viewer accepts."""
        source = SOURCES[feed.channel.topic]
        subscription.delivery = Delivery.CATCHING_UP
        stamp: Any = None
        is_new = subscription.cursor < 0
        placed = False  # a cursor beyond the newest item is set back to it
        while subscription in feed.subscriptions:
            try:
                if not placed:
                    newest = await self.in_side_reader(source.head, feed.channel)
                    subscription.cursor = newest if is_new else min(subscription.cursor, newest)
                    placed = True
                served = feed.served
                request = ReadRequest(feed.channel, subscription.cursor, stamp, upto=feed.head)
                page = (await self.in_side_reader(source.read, [request])).get(feed.channel.name)
            except StoreDown as error:
                self._report_down(feed, error)
                await asyncio.sleep(SWEEP_S)
                continue
            if page is None:
                return  # gone; the next access check reports it
            if is_new:  # the first frame holds all up to the batch's head
                is_new, subscription.given = False, heads.first_row(page.head)
            for frame in page.frames:
                await subscription.viewer.room(frame.size)
                if subscription not in feed.subscriptions:
                    return
                subscription.put(frame)
            subscription.cursor, stamp = page.head, page.stamp
            if page.more:
                continue
            if feed.head is None:
                feed.head, feed.stamp = subscription.cursor, page.stamp
            # A state can change without a new number: what was served during the read may be newer than what was read.
            missed = not source.missed_is_fetched and feed.served != served
            if subscription.cursor >= feed.head and not missed:
                subscription.delivery = Delivery.LIVE
                self._mark(feed.channel.name)
                return

    def _drained(self, viewer: Viewer) -> None:
        """A viewer has room again: send what it missed, or the current state."""
        for subscription in list(viewer.subscriptions.values()):
            feed = self.feeds.get(subscription.ch)
            if subscription.delivery is not Delivery.LAGGING or feed is None:
                continue
            if SOURCES[feed.channel.topic].missed_is_fetched:
                subscription.rejoin(feed.head or 0)
            else:
                self._spawn(self._catch_up_or_close(feed, subscription))

    def _report_down(self, feed: ChannelFeed, error: StoreDown) -> None:
        if not feed.down:
            feed.down = True
            what = (
                "The data cannot be read"
                if isinstance(error, Unreadable)
                else "The database is not responding"
            )
            text = frames.error_text(feed.channel.name, "unavailable", f"{what}; retrying every second.")
            for subscription in feed.subscriptions:
                subscription.viewer.put(text)

    def _report_up(self, feed: ChannelFeed) -> None:
        """After an outage send every viewer the state again, so that the page is no longer marked as stale."""
        if feed.down:
            feed.down = False
            for subscription in list(feed.subscriptions):
                if subscription.delivery is Delivery.LIVE:
                    self._spawn(self._catch_up_or_close(feed, subscription))


def _cached(source: ChannelSource, request: ReadRequest) -> FrameBatch | None:
    try:
        return source.cached(request)
    except Exception:  # read the database instead, which reports what is wrong
        logger.exception("a channel could not be served from memory")
        return None


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, ViewerHub] = WeakKeyDictionary()


def hub() -> ViewerHub:
    """The hub of the running event loop."""
    return _hubs.setdefault(asyncio.get_running_loop(), ViewerHub())
