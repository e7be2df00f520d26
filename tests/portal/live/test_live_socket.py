"""`/ws/v1/live`: who may open a socket and watch what on it, and which frames end it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from jobs.models import Job
from portal.live import guard, live_consumer
from portal.live.identity import Credentials
from portal.live.live_consumer import REFUSALS_LOGGED
from portal.live.viewer_hub import hub
from tenants.models import Membership, Session, Token, User
from tests import factories
from tests.portal.live.conftest import Open
from tests.portal.live.lines import logs_of, print_lines


async def test_permission_is_asked_once_for_all_sockets_of_a_session(
    job: Job, alice: User, socket_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Credentials] = []
    really = guard.who

    def who(known: Credentials) -> User | None:
        asked.append(known)
        return really(known)

    monkeypatch.setattr(guard, "who", who)
    _, token = await sync_to_async(Token.objects.create)(user=alice)
    sockets = [await socket_of(token=token) for _ in range(20)]
    for socket in sockets:
        await socket.sub(logs_of(job), after=0)
        await socket.next(ch=logs_of(job))
    asked.clear()
    began = asyncio.get_running_loop().time()
    while len(asked) < 5:
        await asyncio.sleep(0.05)
    assert len(asked) <= (asyncio.get_running_loop().time() - began) / guard.CHECK_S + 1, (
        "not for each socket"
    )
    await Membership.objects.filter(user=alice).adelete()
    for socket in sockets:
        assert (await socket.next(ch=logs_of(job), error=...))["error"]["code"] == "not_found"


async def test_a_stranger_gets_the_same_for_a_foreign_channel_as_for_a_missing_one(
    job: Job, bob: User, socket_of: Open
) -> None:
    await print_lines(job, 1, 3)
    socket = await socket_of(bob)
    pairs = [
        (f"job:{job.pk}", "job:3f9k2m7qx4ta"),
        (logs_of(job), "job:3f9k2m7qx4ta:logs:1:0"),
        (f"job:{job.pk}:metrics", "job:3f9k2m7qx4ta:metrics"),
        ("tenant:vision-lab:jobs", "tenant:no-such:jobs"),
        ("tenant:vision-lab:quotas", "tenant:no-such:quotas"),
        ("nonsense", "more:nonsense"),
    ]
    for pair in pairs:
        answers = []
        for ch in pair:
            await socket.sub(ch, after=0)
            answers.append((await socket.next(ch=ch))["error"])
        assert answers[0] == answers[1]
        assert answers[0]["code"] == "not_found"


async def test_a_viewer_who_loses_membership_is_unsubscribed_at_once(
    job: Job, alice: User, socket_of: Open
) -> None:
    socket = await socket_of(alice)
    await socket.sub(logs_of(job), after=0)
    await socket.next(ch=logs_of(job))
    await Membership.objects.filter(user=alice).adelete()
    assert (await socket.next(ch=logs_of(job), error=...))["error"]["code"] == "not_found"
    await print_lines(job, 1, 3)
    with pytest.raises(asyncio.TimeoutError):
        await socket.next(1.5, ch=logs_of(job))


async def test_the_end_of_a_session_closes_its_socket(alice: User, socket_of: Open) -> None:
    socket = await socket_of(alice)
    await Session.objects.all().adelete()
    assert await socket.closed() == 4401


async def test_a_socket_without_credentials_is_asked_to_log_in(alice: User, socket_of: Open) -> None:
    assert await (await socket_of()).closed() == 4401
    assert await (await socket_of(token="lut_nonsense")).closed() == 4401


async def test_a_cookie_from_a_foreign_page_opens_nothing(alice: User, socket_of: Open) -> None:
    for origin in ("http://evil.example", "null", "", "http://testserver.evil.example"):
        assert await (await socket_of(alice, origin=origin)).closed() == 4403


async def test_a_program_uses_a_token_and_receives_no_more_than_it_permits(
    job: Job, alice: User, socket_of: Open
) -> None:
    other = await sync_to_async(factories.tenant)("elsewhere")
    await Membership.objects.acreate(user=alice, tenant=other, role="researcher")

    def make(**fields: Any) -> str:
        return str(Token.objects.create(user=alice, name="t", expiry=timedelta(hours=1), **fields)[1])

    free = await socket_of(token=await sync_to_async(make)())
    await free.sub(f"job:{job.pk}", after=0)
    assert (await free.next(ch=f"job:{job.pk}"))["items"]
    bound = await socket_of(token=await sync_to_async(make)(tenant=other))
    await bound.sub(f"job:{job.pk}", after=0)
    assert (await bound.next(ch=f"job:{job.pk}"))["error"]["code"] == "not_found"
    await Token.objects.all().adelete()
    assert await free.closed() == 4401


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "1", '"ping"', "{", '{"op":"shout"}', '{"op":"sub"}', '{"op":"sub","ch":7}',
     '{"op":"sub","ch":"job:x","after":-1}', '{"op":"sub","ch":"job:x","after":"1"}',
     '{"op":"sub","ch":"job:x","after":true}', '{"op":"sub","ch":"job:x","after":1e400}',
     '{"op":"sub","ch":"' + "x" * 9_000 + '"}', "[" * 5_000, '{"op":"sub","ch":"a\\u0000b"}',
     '{"op":"sub","ch":"cluster","afer":1}', '{"op":"ping","x":1}',
     '{"op":"sub","ch":"cluster","' + "😀" * 40 + '":1}'],
)  # fmt: skip
async def test_a_frame_that_cannot_be_read_ends_the_socket_with_the_reason(
    alice: User, socket_of: Open, text: str
) -> None:
    socket = await socket_of(alice)
    await socket.say(text)
    assert await socket.closed() == 4400


async def test_binary_frames_end_the_socket(alice: User, socket_of: Open) -> None:
    socket = await socket_of(alice)
    await socket.wire.send_input({"type": "websocket.receive", "bytes": b"\x00\x01"})
    assert await socket.closed() == 4400


async def test_a_flood_of_frames_ends_the_socket(alice: User, socket_of: Open) -> None:
    socket = await socket_of(alice)
    for _ in range(4_000):  # more than a busy machine could answer at the allowed rate
        await socket.say({"op": "ping"})
    assert await socket.closed() == 1013


async def test_a_socket_carries_a_bounded_number_of_channels(
    job: Job, alice: User, socket_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portal.live.live_consumer.CHANNELS_MAX", 2)
    socket = await socket_of(alice)
    for ch in (f"job:{job.pk}", logs_of(job), "cluster"):
        await socket.sub(ch, after=0)
    assert (await socket.next(ch="cluster"))["error"]["code"] == "too_many_channels"
    await socket.say({"op": "unsub", "ch": logs_of(job)})
    await socket.sub("cluster")
    assert "items" in await socket.next(ch="cluster")


async def test_every_ping_is_answered_and_an_idle_socket_gets_heartbeats(
    alice: User, socket_of: Open
) -> None:
    socket = await socket_of(alice)
    await socket.say({"op": "ping"})
    assert await socket.next() == {"op": "pong"}
    assert await socket.next() == {"op": "pong"}
    assert await socket.next() == {"op": "pong"}


async def test_the_hub_is_idle_without_viewers(alice: User, socket_of: Open) -> None:
    socket = await socket_of(alice)
    await socket.sub("cluster")
    await socket.next(ch="cluster")
    await socket.close()
    assert hub().viewers == set()
    assert hub().feeds == {}
    assert not hub()._tasks


async def test_another_address_says_so(alice: User, socket_of: Open) -> None:
    assert await (await socket_of(alice, path="/ws/v1/nothing")).closed() == 4404


async def test_what_a_socket_refuses_is_logged_with_who_and_from_where(
    job: Job, bob: User, socket_of: Open, caplog: pytest.LogCaptureFixture
) -> None:
    socket = await socket_of(bob)
    await socket.sub(f"job:{job.pk}")
    assert (await socket.next(ch=f"job:{job.pk}"))["error"]["code"] == "not_found"
    stranger = await socket_of(token="lut_wrong")
    assert await stranger.closed() == 4401
    await socket.say("no json")
    assert await socket.closed() == 4400
    seen = [each for each in caplog.records if each.name == "portal.live.live_consumer"]
    assert [(each.getMessage(), vars(each)["user"]) for each in seen] == [
        ("channel refused", "bob"),
        ("socket refused", ""),
        ("socket refused", "bob"),
    ]
    assert [vars(each).get("channel") or vars(each)["code"] for each in seen] == [f"job:{job.pk}", 4401, 4400]
    assert all("address" in vars(each) for each in seen)


async def test_a_socket_counts_for_its_address_until_its_user_is_known(
    alice: User, socket_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_consumer, "SOCKETS_MAX", 1)
    stranger = await socket_of(token="lut_wrong")
    assert (await stranger.closed(), stranger.known) == (4401, [])
    nowhere = await socket_of(alice, path="/ws/v1/nothing")
    assert (await nowhere.closed(), nowhere.known) == (4404, [])
    first = await socket_of(alice)
    await first.say({"op": "ping"})
    await first.next(op="pong")
    assert first.known == ["/ws/v1/live"]
    second = await socket_of(alice)
    assert (await second.closed(), second.known) == (1013, []), (
        "one too many of the user is not counted as theirs"
    )


async def test_one_socket_does_not_fill_the_log_with_what_it_is_refused(
    job: Job, bob: User, socket_of: Open, caplog: pytest.LogCaptureFixture
) -> None:
    socket = await socket_of(bob)
    for n in range(REFUSALS_LOGGED + 5):
        await socket.sub(f"job:{n:012}")
        assert (await socket.next(ch=f"job:{n:012}"))["error"]["code"] == "not_found"
    seen = [each for each in caplog.records if each.getMessage() == "channel refused"]
    assert len(seen) == REFUSALS_LOGGED
