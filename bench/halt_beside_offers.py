"""How soon a learner receives a halt while four learners of another tenant offer checkpoints of 5,000 files each.

The whole platform runs. Rounds of halts without offers and of halts beside them alternate, so that other programs on
the machine slow down both. A halt's time is from the request of its owner until the learner's socket has the intent.
The learners are played (`bench.log_clients`): each offer names new files, and the next follows its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from bench.log_clients import Learner, greet
from bench.log_path import cpu_s, family, make_jobs
from bench.record import percentile, record
from learner_agent import wire
from learner_agent.wire_fields import MAX_FILES
from tests.platform import Client, Platform, running

OFFERING = 4
AIM_S = 1.0
APART_S = 0.5
"""Between halts, so that they meet every part of an offer."""
WITHIN_S = 120
"""After so long a halt that no learner received ends the measurement."""


@dataclass
class Measured:
    """Seconds of halts and of offers."""

    quiet: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    offers: list[float] = field(default_factory=list)


def new_offer(learner: Learner, number: int, files: int) -> bytes:
    listed = [(f"part-{n}.bin", 1000, f"{learner.number:08x}{number:08x}{n:048x}") for n in range(files)]
    return wire.encode(wire.Ckpt(f"save-{number}", step=number, files=listed))


async def offer(learner: Learner, files: int, first: int, taken: list[float], begun: asyncio.Event) -> None:
    """Offer one checkpoint after the other."""
    number = first
    while True:
        message = new_offer(learner, number, files)
        began = time.monotonic()
        await learner.socket.send(message)
        begun.set()
        while True:
            answer = wire.decode(await learner.socket.recv())  # type: ignore[arg-type]
            if isinstance(answer, wire.Ckpt):
                break
        assert answer.need, answer.state  # of thousands, as many as one frame holds
        taken.append(time.monotonic() - began)
        number += 1


async def halt(client: Client, learner: Learner) -> float:
    """Seconds from the request until the learner has received the halt."""
    began = time.monotonic()

    async def received() -> float:
        while True:
            frame = wire.decode(await learner.socket.recv())  # type: ignore[arg-type]
            if isinstance(frame, wire.Beat) and frame.intent is not None and frame.intent.intent == "HALT":
                return time.monotonic() - began

    receives = asyncio.create_task(received())
    answer = await asyncio.to_thread(client.call, "POST", f"/jobs/{learner.job}/halt", {}, timeout_s=WITHIN_S)
    assert answer.status in (200, 202), answer
    return await asyncio.wait_for(receives, WITHIN_S)


async def measure(platform: Platform, halts: int, rounds: int, files: int) -> Measured:
    offering = make_jobs(platform, OFFERING, of="alice")
    halted = make_jobs(platform, 2 * halts * rounds, of="bob", first=OFFERING)
    bob, found = platform.client("bob"), Measured()
    parties = [await greet(platform.url, job, number) for number, job in enumerate(offering)]
    ordinal = 0
    numbers = iter(range(len(halted)))

    async def some(into: list[float]) -> None:
        for _ in range(halts):
            number = next(numbers)
            learner = await greet(platform.url, halted[number], OFFERING + number)
            into.append(await halt(bob, learner))
            await learner.socket.close()
            await asyncio.sleep(APART_S)

    for _ in range(rounds):
        await some(found.quiet)
        ordinal += 1000
        begun = [asyncio.Event() for _ in parties]
        offers = [
            asyncio.create_task(offer(one, files, ordinal, found.offers, event))
            for one, event in zip(parties, begun, strict=True)
        ]
        await asyncio.gather(*(event.wait() for event in begun))
        await some(found.beside)
        assert not any(task.done() for task in offers), [task for task in offers if task.done()]
        for task in offers:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*offers)
        for one in parties:
            await one.socket.close()
        parties = [await greet(platform.url, job, number) for number, job in enumerate(offering)]
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--halts", type=int, default=8, help="of each kind, in each round")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--files", type=int, default=MAX_FILES, help="of each offer")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "data") as platform:
        pids = platform.pids()
        found = uvloop.run(measure(platform, chosen.halts, chosen.rounds, chosen.files))
        web_s, database_s = cpu_s(pids["web"]), sum(map(cpu_s, family(pids["postgres"])))
    quiet, beside = (percentile(each, 0.5) for each in (found.quiet, found.beside))
    record(
        "halt_beside_offers",
        {
            "ratio_p50": beside / quiet,
            "halt_p50_s": beside,
            "halt_max_s": max(found.beside),
            "quiet_halt_p50_s": quiet,
            "quiet_halt_max_s": max(found.quiet),
            "offers": len(found.offers),
            "offer_p50_s": percentile(found.offers, 0.5) if found.offers else 0.0,
            "web_cpu_s": web_s,
            "postgres_cpu_s": database_s,
            "load": os.getloadavg()[0],
        },
        command=f"python -m bench.halt_beside_offers --halts {chosen.halts} --rounds {chosen.rounds}"
        f" --files {chosen.files}",
        baseline="halts without offers, in turns with those beside them",
        targets={"halt_max_s": f"≤ {AIM_S:g}"},
    )


if __name__ == "__main__":
    main()
