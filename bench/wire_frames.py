"""What one frame between shipper and server costs: encode and decode with all checks, in microseconds of one core.

Prints the lowest of several rounds, beside other work on the machine. Nothing is recorded: docs/adr/0022 quotes it.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable

from learner_agent.wire import Ack, Data, Metric, decode, encode

ROUNDS = 9
LINE = b"x" * 79 + b"\n"
NOW_MS = 1_767_225_600_500


def data(lines: int, reads: int) -> Data:
    """A frame of that many lines of 80 bytes, which the launcher read in that many pieces."""
    payload = LINE * lines
    sizes = [len(payload) // reads] * reads
    sizes[-1] += len(payload) - sum(sizes)
    pieces = [(size, after_ms) for after_ms, size in enumerate(sizes)]
    return Data(10, payload, NOW_MS, pieces, zlib.crc32(payload))


def metric(points: int) -> Metric:
    chance = random.Random(1)
    return Metric(
        "jsonl", 0, 90 * points, [(f"loss{n % 8}", n, NOW_MS, chance.random()) for n in range(points)], 100
    )


FRAMES = {
    "DATA, one line": (data(1, 1), 2000),
    "DATA, 256 KiB in 400 reads": (data(3276, 400), 100),
    "METRIC, one point": (metric(1), 2000),
    "METRIC, 1,000 points": (metric(1000), 50),
    "ACK": (Ack(12345, {"jsonl": 5}, 3), 2000),
}


def lowest_us(work: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(times):
            work()
        best = min(best, (time.perf_counter() - began) / times)
    return best * 1e6


def main() -> None:
    print(f"{'frame':28} {'encode µs':>10} {'decode µs':>10}")
    for name, (frame, times) in FRAMES.items():
        message = encode(frame)
        encoding = lowest_us(lambda frame=frame: encode(frame), times)
        decoding = lowest_us(lambda message=message: decode(message), times)
        print(f"{name:28} {encoding:10.1f} {decoding:10.1f}")


if __name__ == "__main__":
    main()
