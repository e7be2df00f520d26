"""The log path: 50 learners print, 200 viewers watch, over the real web server, PostgreSQL and sockets.

Three measurements on one platform: quiet (each learner prints a line now and then), loud (a fixed total rate with all
viewers), and full (as fast as acknowledgements come, nobody watching). Learners and viewers are played by processes
of this benchmark that speak the real protocols; they share the machine's cores with the server. A line carries the
moment it was printed, so a viewer knows how long it took. Nothing may be lost: every viewer counts lines and holes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import queue
import subprocess
import sys
import tempfile
import time
import zlib
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil
import uvloop
from websockets.asyncio.client import ClientConnection, connect

from bench.record import percentile, record
from learner_agent import wire
from tests.platform import ROOT, Platform, running

FILL = "epoch 3 loss 0.123456 accuracy 0.987654 learning_rate 0.000100 throughput 1234.5 images/s"
SECRET = "bench-{rank}"  # of each learner; its hash stands in the table
SETUP = """
import hashlib, json, sys
from datetime import timedelta
from django.utils import timezone
from jobs.models import Attempt, Job, Learner, Progress
from tenants.models import Membership, Token, User
alice = User.objects.get(username="alice")
tenant = Membership.objects.get(user=alice).tenant
count = int({learners})
jobs = []
for n in range(count):
    job = Job.objects.create(
        tenant=tenant, owner=alice, name=f"bench-{{n}}", spec={{}}, framework="plain", learners=1, gpus=0, slots=1,
        placement="pack", priority="normal", priority_rank=1, max_restarts=0, state="PROCESSING", attempt=1,
        settled=True)
    Progress.objects.create(job=job)
    Attempt.objects.create(job=job, tenant=tenant, n=1, cluster="local", slot_type="cpu", slots=1, learners=1,
                           nodes=["node-a"])
    Learner.objects.create(job=job, tenant=tenant, attempt=1, rank=0, node="node-a",
                           secret_sha256=hashlib.sha256(f"bench-{{n}}".encode()).hexdigest())
    jobs.append(job.pk)
print(json.dumps(jobs))
"""


@dataclass
class Learner:
    """One learner's stream as its shipper would send it: at once with nothing in flight, else in full frames."""

    job: str
    number: int
    socket: ClientConnection
    buffer: deque[bytes] = field(default_factory=deque)
    buffered: int = 0
    sent: int = 0
    acked: int = 0
    printed: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def print(self, lines: int) -> None:
        stamp = time.time_ns()
        block = "".join(f"{stamp} {self.printed + n} {FILL}\n" for n in range(lines)).encode()
        self.printed += lines
        self.buffer.append(block)
        self.buffered += len(block)
        self.changed.set()

    async def pump(self) -> None:
        while True:
            await self.changed.wait()
            self.changed.clear()
            while self.buffered and (
                self.sent == self.acked
                or (self.buffered >= wire.MAX_DATA and self.sent - self.acked < 4 * wire.MAX_DATA)
            ):
                payload = b"".join(self.buffer)
                payload, rest = payload[: wire.MAX_DATA], payload[wire.MAX_DATA :]
                self.buffer = deque([rest] if rest else [])
                self.buffered = len(rest)
                now_ms = time.time_ns() // 1_000_000
                frame = wire.Data(self.sent, payload, now_ms, [(len(payload), 0)], zlib.crc32(payload))
                self.sent += len(payload)
                await self.socket.send(wire.encode(frame))

    async def listen(self) -> None:
        beat = wire.encode(wire.Beat(1))
        beat_at = time.monotonic() + 2
        while True:
            message = await self.socket.recv()
            if message[0] == wire.Kind.ACK:
                self.acked = wire.decode(message).log  # type: ignore[arg-type]
                self.changed.set()
            elif message[0] == wire.Kind.NACK:
                raise AssertionError(wire.decode(message))  # type: ignore[arg-type]
            if time.monotonic() > beat_at:
                beat_at = time.monotonic() + 2
                await self.socket.send(beat)


async def greet(url: str, job: str, number: int) -> Learner:
    headers = {"Authorization": f"Bearer {SECRET.format(rank=number)}"}
    socket = await connect(
        url.replace("http", "ws", 1) + "/ws/agent/v1", additional_headers=headers, compression=None, proxy=None,
        ping_interval=None,
    )  # fmt: skip
    await socket.send(wire.encode(wire.Hello(job, 1, 0)))
    welcome = wire.decode(await socket.recv())  # type: ignore[arg-type]
    return Learner(job, number, socket, sent=welcome.log, acked=welcome.log, printed=0)


async def play_learners(url: str, jobs: list[str], rate: float, seconds: float) -> dict[str, float]:
    """Print at rate lines/s over all learners (0: as fast as acknowledged) and wait until all is stored."""
    learners = [await greet(url, job, number) for number, job in enumerate(jobs)]
    tasks = [asyncio.create_task(work()) for one in learners for work in (one.pump, one.listen)]
    began, cpu = time.monotonic(), time.process_time()
    tick = 0.02 if rate >= 50 * len(jobs) or rate == 0 else len(jobs) / rate
    per_tick = rate * tick / len(jobs)
    debt, at = 0.0, began
    while time.monotonic() - began < seconds:
        if rate:
            debt += per_tick
            lines, debt = int(debt), debt - int(debt)
        for place, one in enumerate(learners):
            if rate:
                if tick >= 0.1:  # quiet learners do not speak in one breath
                    await asyncio.sleep(max(0.0, at + tick * place / len(learners) - time.monotonic()))
                if lines:
                    one.print(lines)
            elif one.buffered < wire.MAX_DATA:
                one.print(2000)
        at += tick
        await asyncio.sleep(max(0.001, at - time.monotonic()) if rate else 0.001)
    while any(one.buffered or one.acked < one.sent for one in learners):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    took = time.monotonic() - began
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for one in learners:
        await one.socket.close()
    return {
        "lines": float(sum(one.printed for one in learners)),
        "seconds": took,
        "client_cpu_s": time.process_time() - cpu,
    }


async def watch(
    url: str, token: str, job: str, start: int, done: Any, arrived: Any, found: dict[str, Any]
) -> None:
    """One viewer: counts lines and holes, and takes the time of each frame's newest line."""
    async with connect(
        url.replace("http", "ws", 1) + "/ws/v1/live", additional_headers={"Authorization": f"Bearer {token}"},
        compression=None, proxy=None, max_size=None, ping_interval=None,
    ) as socket:  # fmt: skip
        channel = f"job:{job}:logs:1:0"
        await socket.send(json.dumps({"op": "sub", "ch": channel, "after": start}))
        found["ready"] += 1
        at = start
        while not done.is_set():
            try:
                message = orjson.loads(await asyncio.wait_for(socket.recv(), 0.5))
            except TimeoutError:
                continue
            if message.get("gap"):  # too slow for the socket: these are to be fetched by REST
                found["gap_lines"] += message["gap"]["to"] - message["gap"]["from"] + 1
                arrived.value += message["gap"]["to"] - message["gap"]["from"] + 1
                at = message["gap"]["to"]
            items = message.get("items")
            if not items:
                continue
            now = time.time_ns()
            if items[0]["n"] > at + 1:
                found["holes"] += 1
            fresh = max(
                0, items[-1]["n"] - max(at, items[0]["n"] - 1)
            )  # what overlaps is known by its number
            at = max(at, items[-1]["n"])
            found["lines"] += fresh
            arrived.value += fresh
            found["delays_ms"].append((now - int(items[-1]["text"].split(" ", 1)[0])) / 1e6)


def play_viewers(
    url: str,
    tokens: list[str],
    jobs: list[str],
    starts: list[int],
    viewers: int,
    ready: Any,
    done: Any,
    arrived: Any,
    out: Any,
) -> None:
    """A process of viewers, spread evenly over the jobs."""

    async def all_of_them() -> dict[str, Any]:
        found: dict[str, Any] = {"lines": 0, "holes": 0, "gap_lines": 0, "delays_ms": [], "ready": 0}
        began, cpu = time.monotonic(), time.process_time()
        tasks = [
            asyncio.create_task(
                watch(
                    url,
                    tokens[n % len(tokens)],
                    jobs[n % len(jobs)],
                    starts[n % len(jobs)],
                    done,
                    arrived,
                    found,
                )
            )
            for n in range(viewers)
        ]
        while found["ready"] < viewers and not any(task.done() for task in tasks):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        ready.set()
        await asyncio.gather(*tasks)
        found["cpu_share"] = (time.process_time() - cpu) / (time.monotonic() - began)
        return found

    out.put(uvloop.run(all_of_them()))


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def measure(
    platform: Platform, jobs: list[str], starts: list[int], *, rate: float, seconds: float, viewers: int
) -> dict[str, float]:
    """One run; returns its figures and moves starts on."""
    spawn = multiprocessing.get_context("spawn")
    ready, done, out = spawn.Event(), spawn.Event(), spawn.Queue()
    arrived = spawn.Value("q", 0, lock=False)
    process = None
    if viewers:
        tokens = [
            str(platform.users[name]["token"]) for name in ("alice", "carol", "dave")
        ]  # 100 sockets each at most
        process = spawn.Process(
            target=play_viewers, args=(platform.url, tokens, jobs, starts, viewers, ready, done, arrived, out)
        )
        process.start()
        assert ready.wait(60), "the viewers did not come"
    pids = platform.pids()
    before = {role: cpu_s(pids[role]) for role in ("web", "valkey")}
    sent = uvloop.run(play_learners(platform.url, jobs, rate, seconds))
    spent = {role: cpu_s(pids[role]) - before[role] for role in before}
    figures = {
        "lines": sent["lines"],
        "lines_per_s": sent["lines"] / sent["seconds"],
        "lines_per_web_cpu_s": sent["lines"] / max(spent["web"], 1e-6),
        "web_cpu_share": spent["web"] / sent["seconds"],
        "clients_cpu_share": sent["client_cpu_s"] / sent["seconds"],
    }
    per_job = int(sent["lines"]) // len(jobs)
    for place in range(len(starts)):
        starts[place] += per_job
    if process is not None:
        expected = int(sent["lines"]) * viewers // len(jobs)
        wait_for_the_rest(arrived, expected)
        done.set()
        found = None
        while found is None:
            try:
                found = out.get(timeout=30)
            except queue.Empty:
                raise AssertionError("the viewers died") from None
        process.join()
        figures |= {
            "delivered_share": found["lines"] / expected,
            "left_to_rest_share": found["gap_lines"] / expected,
            "holes": float(found["holes"]),
            "viewers_cpu_share": found["cpu_share"],
            "p50_ms": percentile(found["delays_ms"], 0.5),
            "p99_ms": percentile(found["delays_ms"], 0.99),
        }
    return figures


def wait_for_the_rest(arrived: Any, expected: int) -> None:
    """Wait until everything has arrived, or nothing more does."""
    last, since = -1, time.monotonic()
    while arrived.value < expected and time.monotonic() - since < 5:
        if arrived.value != last:
            last, since = arrived.value, time.monotonic()
        time.sleep(0.1)


def make_jobs(platform: Platform, learners: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "-v", "0", "-c", SETUP.format(learners=learners)], cwd=ROOT,
        env=platform.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--learners", type=int, default=50)
    arguments.add_argument("--viewers", type=int, default=200)
    arguments.add_argument("--seconds", type=float, default=15)
    arguments.add_argument("--rate", type=float, default=100_000, help="lines per second in the loud run")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), workers=1) as platform:
        jobs = make_jobs(platform, options.learners)
        starts = [0] * len(jobs)
        runs = {
            "quiet": measure(platform, jobs, starts, rate=options.learners, seconds=options.seconds,
                             viewers=options.viewers),
            "loud": measure(platform, jobs, starts, rate=options.rate, seconds=options.seconds,
                            viewers=options.viewers),
            "full": measure(platform, jobs, starts, rate=0, seconds=options.seconds, viewers=0),
        }  # fmt: skip
    figures = {f"{run}_{name}": value for run, found in runs.items() for name, value in found.items()}
    record(
        "log_path",
        figures,
        command=f"python -m bench.log_path --learners {options.learners} --viewers {options.viewers}",
        baseline="none; learners and viewers share the cores with the server",
        aims={
            "full_lines_per_s": 100_000,
            "loud_p99_ms": 100,
            "quiet_p99_ms": 100,
            "loud_delivered_share": 1,
        },
    )


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
