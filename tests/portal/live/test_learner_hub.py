"""What serves the learners: slow work of one of them delays no halt of another."""

from __future__ import annotations

import asyncio
import threading

from portal.live.learner_hub import OFFERS, in_database


async def test_offers_of_files_that_take_long_do_not_delay_the_intents_of_other_learners() -> None:
    free = threading.Event()
    offers = [asyncio.create_task(in_database(free.wait, 60, threads=OFFERS)) for _ in range(20)]
    try:
        async with asyncio.timeout(30):
            assert await in_database(lambda: "halt") == "halt"
        assert not any(offer.done() for offer in offers)
    finally:
        free.set()
        assert all(await asyncio.gather(*offers))
