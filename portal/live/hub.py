"""One hub per web process: reads each watched channel once and gives the same bytes to all its viewers.

Hints make it prompt, a look at the store once a second makes it certain: with Valkey gone nothing is lost and a
frame is at most a second late. With PostgreSQL gone the sockets stay and the channels say so. The hub sleeps while
nobody watches. All methods run in the event loop; the store is read in threads of its own.
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
from portal.database.threads import DatabaseThreads
from portal.live.errors import StoreDown, Unreadable
from portal.live.frames import error_text
from portal.live.guard import Guard, Watcher
from portal.live.protocol import Channel, Topic
from portal.live.reading import SOURCES
from portal.live.sources import Batch, ChannelSource, ReadRequest, first_row, store_cursor
from portal.live.viewer import Delivery, Subscription, Viewer

logger = logging.getLogger(__name__)

SWEEP_S = 1.0  # the store is looked at this often without any hint
BEAT_S = 2.0  # a frame on every socket at least this often (contracts 9)
PACE_S = 0.02  # shortest time between two looks at a channel, and two readings of the store for a topic
RETRY_S = 1.0  # a duty that failed begins again after so long
STUCK_S = 60.0  # a viewer who takes no byte for this long is cut
READERS = 2  # threads that read for everybody who is up to date …
SIDE_READERS = 2  # … and for all else: who comes, who still may watch, who has to catch up

T = TypeVar("T")


@dataclass(eq=False)
class Feed:
    """A watched channel; head is the number up to which its live viewers were served, None before the first read."""

    channel: Channel
    head: int | None = None
    stamp: Any = None
    dirty: bool = False
    due: float = 0.0  # not looked at again before this moment of the loop's clock
    cached_at: float = 0.0  # when it was last served without asking the store
    down: bool = False
    alone: bool = (
        False  # it could not be read: until it can, it is asked for by itself and spoils no reading of others
    )
    subscriptions: set[Subscription] = field(default_factory=set)


class Hub:
    """Use `hub()` to get the one of the running event loop."""

    def __init__(self) -> None:
        self.viewers: set[Viewer] = set()
        self.guarded: set[Watcher] = set()
        self.feeds: dict[str, Feed] = {}
        self._wakes: dict[Topic, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._readers: DatabaseThreads | None = None
        self._side_readers: DatabaseThreads | None = None
        self._guard = Guard(lambda: self.guarded, self.in_side_reader)

    # --- viewers come and go ---

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
        self, viewer: Viewer, channel: Channel, after: int | None, *, is_guest: bool = False
    ) -> None:
        """Serve the viewer from after + 1 on (None: from now on). A second subscription replaces the first."""
        self.unsubscribe(viewer, channel.name)
        feed = self.feeds.setdefault(channel.name, Feed(channel))
        subscription = Subscription(viewer, channel.name, -1 if after is None else after, is_guest=is_guest)
        if after is not None and SOURCES[channel.topic].counts_rows:
            subscription.given, subscription.cursor = after, store_cursor(after)
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
        """Read the store for everybody who is up to date. Raises StoreDown."""
        return await self._run(self._readers, function, *arguments)

    async def in_side_reader(self, function: Callable[..., T], *arguments: Any) -> T:
        """Read the store for one viewer, in threads of their own: those who are up to date do not wait for him.

        Raises StoreDown.
        """
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

    # --- what keeps it going ---

    def _start(self) -> None:
        self._readers, self._side_readers = (
            DatabaseThreads(READERS, "live-reader"),
            DatabaseThreads(SIDE_READERS, "live-aside"),
        )
        self._wakes = {topic: asyncio.Event() for topic in SOURCES}
        for topic, source in SOURCES.items():
            self._spawn(self._keep(partial(self._pump, topic, source)))
        for duty in (self._sweep, self._beat, self._listen, self._guard.run):
            self._spawn(self._keep(duty))

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
        if self.viewers:  # somebody came meanwhile
            self._start()

    @staticmethod
    async def _keep(duty: Callable[[], Awaitable[None]]) -> None:
        """Do it for as long as anybody watches; an error in it costs a second, not the duty."""
        while True:
            try:
                await duty()
            except Exception:
                logger.exception("a duty of the hub failed and begins again")
            await asyncio.sleep(RETRY_S)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("a task of the hub failed", exc_info=error)

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()

        def on_hint(hint: Hint) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody watches any more
                loop.call_soon_threadsafe(self.on_hint, hint)

        async with pubsub.subscribed(on_hint):
            await asyncio.Event().wait()

    def on_hint(self, hint: Hint) -> None:
        """Mark what a hint speaks of as worth a look."""
        match hint.subject:
            case Subject.LOGS:
                self._mark(f"job:{hint.job_id}:logs:{hint.attempt}:{hint.rank}")
            case Subject.METRICS:
                self._mark(
                    f"job:{hint.job_id}:metrics"
                )  # the job's own numbers come with the sweep, once a second
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
                    viewer.cut(4408, "You read too slowly.")

    # --- reading ---

    async def _pump(self, topic: Topic, source: ChannelSource) -> None:
        """Look at the channels that have more: at what is at hand in the loop itself, at the store in a thread."""
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
                feed.dirty, feed.due = False, now + PACE_S
                if feed.head is None:
                    continue
                request = ReadRequest(feed.channel, feed.head, feed.stamp)
                if (page := _cached(source, request)) is not None:
                    feed.cached_at = now
                    self._deliver(feed, page)
                    await asyncio.sleep(0)  # the sockets' turn
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
                store_due = loop.time() + PACE_S
            if later:
                loop.call_at(min(later), wake.set)

    async def _read(self, source: ChannelSource, requests: list[ReadRequest]) -> None:
        """Read them together. One that cannot be read costs the others nothing: it is found by halving, once."""
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

    def _deliver(self, feed: Feed, page: Batch) -> None:
        self._report_up(feed)
        feed.alone = False
        feed.stamp = page.stamp
        for frame in page.frames:
            for subscription in feed.subscriptions:
                subscription.offer(frame)
        feed.head = page.head
        if page.more:
            self._mark(feed.channel.name)

    async def _catch_up_or_close(self, feed: Feed, subscription: Subscription) -> None:
        """Catch up, or end the socket: whoever stayed behind without a word would take an old page for a live one."""
        try:
            await self._catch_up(feed, subscription)
        except Exception:
            logger.exception("a viewer could not catch up and is sent away to come again")
            subscription.viewer.cut(1011, "Something went wrong here; connect again.")

    async def _catch_up(self, feed: Feed, subscription: Subscription) -> None:
        """Read the store for one subscription until it has reached the others, at the pace of its viewer."""
        source = SOURCES[feed.channel.topic]
        subscription.delivery = Delivery.CATCHING_UP
        placed = False  # a cursor beyond the store's end is put back to it
        while subscription in feed.subscriptions:
            try:
                if not placed:
                    newest = await self.in_side_reader(source.head, feed.channel)
                    if subscription.cursor < 0:
                        subscription.cursor, subscription.given = newest, first_row(newest)
                    subscription.cursor = min(subscription.cursor, newest)
                    placed = True
                request = ReadRequest(feed.channel, subscription.cursor, upto=feed.head)
                page = (await self.in_side_reader(source.read, [request])).get(feed.channel.name)
            except StoreDown as error:
                self._report_down(feed, error)
                await asyncio.sleep(SWEEP_S)
                continue
            if page is None:
                return  # gone; the consumer's next look at its permission says so
            for frame in page.frames:
                await subscription.viewer.room(frame.size)
                if subscription not in feed.subscriptions:
                    return
                subscription.put(frame)
            subscription.cursor = page.head
            if page.more:
                continue
            if feed.head is None:
                feed.head, feed.stamp = subscription.cursor, page.stamp
            if subscription.cursor >= feed.head:
                subscription.delivery = Delivery.LIVE
                self._mark(feed.channel.name)
                return

    def _drained(self, viewer: Viewer) -> None:
        """A viewer has room again: tell him what he missed, or how things stand."""
        for subscription in list(viewer.subscriptions.values()):
            feed = self.feeds.get(subscription.ch)
            if subscription.delivery is not Delivery.LAGGING or feed is None:
                continue
            if SOURCES[feed.channel.topic].missed_is_fetched:
                subscription.rejoin(feed.head or 0)
            else:
                self._spawn(self._catch_up_or_close(feed, subscription))

    def _report_down(self, feed: Feed, error: StoreDown) -> None:
        if not feed.down:
            feed.down = True
            what = "This cannot be read" if isinstance(error, Unreadable) else "The database does not answer"
            text = error_text(feed.channel.name, "unavailable", f"{what}; asked again each second.")
            for subscription in feed.subscriptions:
                subscription.viewer.put(text)

    def _report_up(self, feed: Feed) -> None:
        """After a failure every viewer is told the state again, so that the page stops looking stale."""
        if feed.down:
            feed.down = False
            for subscription in list(feed.subscriptions):
                if subscription.delivery is Delivery.LIVE:
                    self._spawn(self._catch_up_or_close(feed, subscription))


def _cached(source: ChannelSource, request: ReadRequest) -> Batch | None:
    try:
        return source.cached(request)
    except Exception:  # what cannot be served from memory is asked of the store, which tells what is wrong
        logger.exception("what is at hand could not be read")
        return None


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def hub() -> Hub:
    """The hub of the running event loop."""
    return _hubs.setdefault(asyncio.get_running_loop(), Hub())
