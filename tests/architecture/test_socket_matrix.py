"""Every channel of the live socket, asked for by everybody: items, or the answer that a missing channel gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from learner_agent.wire import CloseCode
from portal.live import learner_hub
from portal.live.protocol import Topic
from tenants.models import AuditEntry, Token
from tests.architecture import rows
from tests.architecture.rows import IN
from tests.architecture.world import LEARNERS, MISSING, Who, World, build
from tests.portal.live.conftest import connections_closed, hosts, socket_of

__all__ = ["connections_closed", "hosts", "socket_of"]

Open = Callable[..., Any]


@pytest.fixture
def world(transactional_db: None) -> World:
    return build()


def test_every_kind_of_channel_has_a_row() -> None:
    assert set(rows.CHANNELS) == set(Topic)


async def test_a_channel_answers_whom_its_row_names(world: World, socket_of: Open) -> None:
    faults = []
    for who in sorted(set(Who) - LEARNERS - {Who.ANONYMOUS}):
        socket = await socket_of(token=await sync_to_async(_token)(world, who))
        for topic, (name, rule) in rows.CHANNELS.items():
            here, nowhere = name.format(**world.things), name.format(**world.things | MISSING)
            answer = await _ask(socket, here)
            if rule[who] == IN and "error" in answer:
                faults.append(f"{topic} as {who}: {answer['error']}")
            elif rule[who] != IN and _bare(answer) != _bare(await _ask(socket, nowhere)):
                faults.append(f"{topic} as {who}: {answer}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("channel", "action"), [("job:{job_id}", "job.read"), ("tenant:vision-lab:jobs", "job.list")]
)
async def test_what_an_admin_listens_to_is_recorded_for_its_tenant(
    world: World, socket_of: Open, channel: str, action: str
) -> None:
    read = AuditEntry.objects.filter(actor=world.users[Who.ADMIN], tenant=world.tenant, action=action)
    await read.adelete()
    socket = await socket_of(token=await sync_to_async(_token)(world, Who.ADMIN))
    assert "error" not in await _ask(socket, channel.format(**world.things))
    assert await read.acount() == 1


@pytest.mark.parametrize(
    "given",
    [
        {"query": b"access_reason=A%20call%20for%20help"},
        {"headers": [(b"x-access-reason", b"A call for help")]},
    ],
)
async def test_the_reason_that_an_admin_gives_for_listening_is_recorded(
    world: World, socket_of: Open, given: dict[str, Any]
) -> None:
    socket = await socket_of(token=await sync_to_async(_token)(world, Who.ADMIN), **given)
    await _ask(socket, "job:{job_id}".format(**world.things))
    read = AuditEntry.objects.filter(actor=world.users[Who.ADMIN], action="job.read")
    assert [entry.reason async for entry in read] == ["A call for help"]


@pytest.mark.parametrize("who", [Who.ANONYMOUS, *sorted(LEARNERS)])
async def test_the_live_socket_is_closed_to_who_is_no_user(world: World, socket_of: Open, who: Who) -> None:
    socket = await socket_of(token=world.secrets.get(who, ""))
    assert await socket.closed() == CloseCode.UNAUTHORIZED


async def test_the_learners_socket_is_closed_to_users(world: World, socket_of: Open) -> None:
    token = await sync_to_async(_token)(world, Who.OWNER)
    socket = await socket_of(token=token, path="/ws/agent/v1")
    assert await socket.closed() == CloseCode.UNAUTHORIZED
    await sync_to_async(learner_hub.THREADS.close)()
    await sync_to_async(learner_hub.OFFERS.close)()


async def _ask(socket: Any, channel: str) -> dict[str, Any]:
    await socket.sub(channel, after=0)
    answer = await socket.next(ch=channel)
    await socket.say({"op": "unsub", "ch": channel})
    return dict(answer)


def _bare(answer: dict[str, Any]) -> dict[str, Any]:
    """An error without the channel's name; items are never equal to one."""
    return (
        {key: value for key, value in answer.items() if key != "ch"} if "error" in answer else {"let": "in"}
    )


def _token(world: World, who: Who) -> str:
    _, secret = Token.objects.create(user=world.users[who], name="knock")
    return str(secret)
