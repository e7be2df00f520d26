"""Learner agents of pods on fake nodes, where no container runs: they say that the program runs, with heartbeats."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

from websockets.asyncio.client import ClientConnection, connect

from learner_agent import wire


class PlayedAgents:
    """One connection for each job's only learner until the end of the block. Secrets by the job's id."""

    def __init__(self, url: str, secrets: Mapping[str, str]) -> None:
        self._url = url.replace("http", "ws", 1) + "/ws/agent/v1"
        self._secrets = secrets
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._play_all(),))
        self._over = asyncio.Event()

    def __enter__(self) -> PlayedAgents:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    async def _play_all(self) -> None:
        agents = [asyncio.create_task(self._play(job, secret)) for job, secret in self._secrets.items()]
        await self._over.wait()
        for agent in agents:
            agent.cancel()
        await asyncio.gather(*agents, return_exceptions=True)

    async def _play(self, job: str, secret: str) -> None:
        headers = {"Authorization": f"Bearer {secret}"}
        async with connect(self._url, additional_headers=headers, compression=None, proxy=None) as socket:
            await socket.send(wire.encode(wire.Hello(job, 1, 0, wire.PROTO)))
            wire.decode(await socket.recv(decode=False))
            await socket.send(wire.encode(wire.Event(1, "phase", 0, {"phase": "PROCESSING"})))
            async with asyncio.TaskGroup() as both:
                both.create_task(_read(socket))
                both.create_task(_beat(socket))


async def _read(socket: ClientConnection) -> None:
    async for _ in socket:
        pass  # acknowledgments


async def _beat(socket: ClientConnection) -> None:
    number = 0
    while True:
        number += 1
        await socket.send(wire.encode(wire.Beat(number)))
        await asyncio.sleep(wire.HEARTBEAT_S)
