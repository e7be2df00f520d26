"""What one viewer of a channel is given of what all are given."""

from __future__ import annotations

import asyncio

import orjson

from portal.live.frames import ViewerFrame, gap_frame, items_frame, state_frame
from portal.live.viewer import OUTBOX_BYTES, Delivery, Subscription, Viewer


async def nowhere(text: bytes) -> None:
    """Nothing is read."""


def at(cursor: int, delivery: Delivery = Delivery.LIVE) -> Subscription:
    return Subscription(Viewer(nowhere), "job:1", cursor, delivery=delivery)


def frame(first: int, last: int) -> ViewerFrame:
    return items_frame("job:1", first, last, list(range(first, last + 1)))


def waiting(subscription: Subscription) -> list[bytes]:
    return list(subscription.viewer._outbox)


def test_a_frame_below_the_cursor_is_not_sent() -> None:
    """The viewer received those items while catching up; they would move its cursor back."""
    viewer = at(7)

    viewer.offer(frame(3, 6))

    assert waiting(viewer) == []
    assert (viewer.cursor, viewer.delivery) == (7, Delivery.LIVE)


def test_a_frame_that_follows_the_cursor_is_sent_and_moves_it() -> None:
    viewer = at(7)

    viewer.offer(frame(8, 9))

    assert waiting(viewer) == [frame(8, 9).text]
    assert (viewer.cursor, viewer.delivery) == (9, Delivery.LIVE)


def test_only_the_missing_part_of_a_frame_is_sent() -> None:
    """The viewer caught up to a little beyond the others."""
    viewer = at(7)

    viewer.offer(frame(6, 9))
    viewer.offer(items_frame("job:1", 8, 9, [8, 9], sealed=True))
    viewer.offer(gap_frame("job:1", 9, 12, lost=True))
    viewer.offer(gap_frame("job:1", 11, 12, lost=True))

    assert [orjson.loads(text) for text in waiting(viewer)] == [
        {"ch": "job:1", "from": 8, "to": 9, "items": [8, 9]},
        {
            "ch": "job:1",
            "from": 10,
            "to": 9,
            "items": [],
            "sealed": True,
        },  # the state beside the items may be new
        {"ch": "job:1", "gap": {"from": 10, "to": 12, "lost": True}},
    ]
    assert (viewer.cursor, viewer.delivery) == (12, Delivery.LIVE)


def test_rows_are_states_and_come_whole() -> None:
    viewer = at(7)

    viewer.offer(state_frame("cluster", 6, 9, ["a", "b"]))

    assert [orjson.loads(text)["items"] for text in waiting(viewer)] == [["a", "b"]]
    assert (viewer.cursor, viewer.given) == (9, 2)


def test_rows_are_sent_though_their_number_grew_without_any() -> None:
    viewer = at(7)

    viewer.offer(state_frame("cluster", 12, 12, ["a"]))
    viewer.offer(state_frame("cluster", 9, 9, ["older by its number, but read later"]))

    assert len(waiting(viewer)) == 2
    assert (viewer.cursor, viewer.delivery) == (12, Delivery.LIVE)


async def test_who_falls_behind_with_nothing_left_to_send_recovers_at_once() -> None:
    viewer = at(7)
    recovered = asyncio.Event()
    viewer.viewer.drained = lambda viewer: recovered.set()
    sending = asyncio.create_task(viewer.viewer.send_queued())

    await asyncio.sleep(0)  # the outbox is empty, so nothing will drain
    viewer.offer(frame(9, 9))
    await asyncio.wait_for(recovered.wait(), 60)

    sending.cancel()


def test_a_frame_beyond_a_gap_is_not_sent_but_reported_as_a_gap() -> None:
    viewer = at(7)

    viewer.offer(frame(9, 9))
    viewer.offer(frame(8, 8))

    assert waiting(viewer) == []
    assert (viewer.cursor, viewer.delivery) == (7, Delivery.LAGGING)
    viewer.rejoin(9)
    assert [orjson.loads(text)["gap"] for text in waiting(viewer)] == [{"from": 8, "to": 9}]
    assert (viewer.cursor, viewer.delivery) == (9, Delivery.LIVE)


def test_a_full_outbox_lets_a_viewer_fall_behind() -> None:
    viewer = at(7)
    viewer.viewer.put(b"x" * OUTBOX_BYTES)

    viewer.offer(frame(8, 8))

    assert waiting(viewer) == [b"x" * OUTBOX_BYTES]
    assert (viewer.cursor, viewer.delivery) == (7, Delivery.LAGGING)


def test_what_the_socket_takes_at_once_does_not_wait_and_overtakes_nothing() -> None:
    taken: list[bytes] = []
    is_open = True
    viewer = at(7)
    viewer.viewer.write = lambda ready: is_open and not taken.append(ready)

    viewer.offer(frame(8, 8))
    is_open = False
    viewer.offer(frame(9, 9))
    is_open = True
    viewer.offer(frame(10, 10))

    assert taken == [frame(8, 8).ready]
    assert waiting(viewer) == [frame(9, 9).text, frame(10, 10).text]


def test_who_still_catches_up_gets_nothing_of_what_all_get() -> None:
    viewer = at(7, Delivery.CATCHING_UP)

    viewer.offer(frame(8, 9))

    assert waiting(viewer) == []
    assert viewer.cursor == 7
