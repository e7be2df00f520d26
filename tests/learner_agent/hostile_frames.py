"""What a shipper in the wrong hands sends: real frames, most of them damaged in one way or another, by a seed."""

from __future__ import annotations

import gzip
import json
import random
import struct
import zlib
from collections import deque
from typing import Any

import zstandard

from learner_agent import wire
from learner_agent.wire import FrameType
from learner_agent.wire_fields import MAX_OFFSET

BOMBS = (
    gzip.compress(bytes(10**7)),
    zlib.compress(bytes(10**7)),
    zstandard.compress(bytes(10**7)),
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"9" * 100_000,
)
"""A few bytes or nested steps that a careless reader unfolds into very many."""
NUMBERS = (-1, 0, 1, 2**31, 2**32, 2**52, 2**60, MAX_OFFSET - 1, MAX_OFFSET, 2**63 - 1, 2**63, 2**64, 10**400)
STRANGE: tuple[Any, ...] = (
    None, True, False, 1.5, -0.0, 1e308, float("nan"), float("inf"), "", "\0", "a\0b", "\ud800", "\u202e\u2028",
    "NaN", "0", "x" * 5_000, "../../etc/passwd", "{}", [], {}, [[]], [None] * 3_000, {"a": {"b": [1]}}, *NUMBERS,
)  # fmt: skip
NAMES = ("loss", "acc", "__proto__", "=1+1", "<b>", "\u202eloss", "%s", "a/b", "x" * 120, "''; --")
LARGE = (2**31, 2**52, 2**60, MAX_OFFSET)


class HostileShipper:
    """Frames by a seed. others: ids (job, attempt, rank) of learners whose secret it does not have."""

    def __init__(self, seed: int, others: list[tuple[str, int, int]]) -> None:
        self.chance = random.Random(seed)
        self.others = others
        self.log = self.points = self.events = 0
        self.sent: deque[bytes] = deque(maxlen=200)
        self.held: bytes | None = None

    def follow(self, answer: wire.WireFrame) -> None:
        """Continue where the server says, as a real shipper does."""
        if isinstance(answer, wire.Ack):
            self.log = max(self.log, answer.log)
        elif isinstance(answer, wire.Nack) and answer.stream == "log":
            self.log = answer.next

    def message(self) -> bytes | str:
        """The next message: replayed, out of order, damaged or sound."""
        luck = self.chance.random()
        if luck < 0.1 and self.sent:
            return self.chance.choice(self.sent)
        if luck < 0.11:
            return "text"
        made = self._frame()
        if luck < 0.2:  # after the next one
            made, self.held = self.held or made, made
        self.sent.append(made)
        return made

    def _frame(self) -> bytes:
        chance = self.chance
        kinds = (self._data, self._metric, self._event, self._ckpt, self._final, self._beat, self._down)
        kind, header, payload = chance.choices(kinds, (30, 30, 20, 4, 1, 3, 3))[0]()
        if chance.random() < 0.4:
            self.log += len(payload) if kind == FrameType.DATA else 0
            self.points += 10 if header.get("src") == "jsonl" else 0
            return pack(kind, header, payload)
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            damage = chance.randrange(8)
            if damage == 0 and header:
                header[chance.choice(list(header))] = self._strange()
            elif damage == 1 and header:
                header.pop(chance.choice(list(header)))
            elif damage == 2:
                job, attempt, rank = chance.choice(self.others)
                header |= {"job": job, "attempt": attempt, "rank": rank, "learner_id": rank, "tenant": 1}
            elif damage == 3:
                kind = chance.choice([*FrameType, 0, 255])
            elif damage == 4:
                payload = chance.choice((*BOMBS, b"", payload * 2, payload[: len(payload) // 2]))
                if chance.random() < 0.5:
                    header |= {"crc": zlib.crc32(payload), "reads": [[max(1, len(payload)), 0]]}
            elif damage == 5:
                return pack(kind, header, payload, chance.randrange(65_536))
            elif damage == 6:
                return self._flipped(pack(kind, header, payload))
            else:
                header[chance.choice(("off", "next", "n", "gone", "size", "step", "total"))] = chance.choice(
                    NUMBERS
                )
        return pack(kind, header, payload)

    def _strange(self) -> Any:
        if self.chance.random() < 0.1:
            nested: Any = 1
            for _ in range(self.chance.choice((10, 200, 900))):
                nested = [nested] if self.chance.random() < 0.5 else {"a": nested}
            return nested
        return self.chance.choice(STRANGE)

    def _flipped(self, message: bytes) -> bytes:
        changed = bytearray(message)
        for _ in range(self.chance.randrange(1, 5)):
            changed[self.chance.randrange(len(changed))] = self.chance.randrange(256)
        return bytes(
            changed[: self.chance.randrange(len(changed) + 1)] if self.chance.random() < 0.3 else changed
        )

    # --- frames as a real shipper sends them, and numbers as it never does

    def _data(self) -> tuple[int, dict[str, Any], bytes]:
        chance = self.chance
        if chance.random() < 0.05:
            gone = chance.choice((1, 1000, *LARGE)) if chance.random() < 0.2 else chance.randrange(1, 100)
            return FrameType.DATA, {"off": self.log, "gone": gone, "lines": chance.choice((0, 1, gone))}, b""
        payload = chance.choice(
            (b"step 1 loss=0.5\n", b"\xff\xfe\0\n", b"\n" * 50, chance.randbytes(60), b"\x1b[31m")
        )
        t0 = chance.choice((1_767_225_600_500, 0, *LARGE))
        header = {"off": self.log, "crc": zlib.crc32(payload), "t0": t0, "reads": [[len(payload), 0]]}
        return FrameType.DATA, header, payload

    def _metric(self) -> tuple[int, dict[str, Any], bytes]:
        chance = self.chance
        points = [
            [
                chance.choice(NAMES),
                chance.choice((chance.randrange(1000), *LARGE)),
                chance.choice((0, 1_767_225_600_500, 2**52)),
                chance.choice(
                    (chance.random(), 1e308, -1e308, 5e-324, "NaN", "Infinity", "-Infinity", 10**30)
                ),
            ]
            for _ in range(chance.choice((1, 1, 2, 20)))
        ]
        source = chance.choice(("jsonl", "jsonl", "rules", "tensorboard"))
        header: dict[str, Any] = {"src": source, "off": self.points, "next": self.points + 10}
        if chance.random() < 0.1:
            header |= {"total": chance.choice((0, 100, *LARGE)), "in_order": [points[0][0]]}
        if chance.random() < 0.1:
            header |= {"steps": [chance.choice((0, 7, *LARGE)), chance.choice((0, 7, *LARGE))]}
            header |= {"fell_ms": chance.choice((0, 1_767_225_600_500, *LARGE))}
        return FrameType.METRIC, header, json.dumps(points).encode()

    def _event(self) -> tuple[int, dict[str, Any], bytes]:
        self.events += 1
        what, data = self.chance.choice((
            ("phase", {"phase": self.chance.choice(("PROCESSING", "READY", "DONE", "nonsense"))}),
            ("exit", {"code": self.chance.choice((0, 1, 137, 2**31, -1)), "halted": True}),
            ("error", {"code": self.chance.choice(("oom", "x" * 60, "setup_failed")), "message": "m\u2028" * 100}),
            ("halt_seen", {"gen": self.chance.choice((0, 1, *LARGE))}),
        ))  # fmt: skip
        times = {"at_ms": self.chance.choice((0, *LARGE)), "ago_ms": self.chance.choice((0, 5, *LARGE))}
        return FrameType.EVENT, {"n": self.events, "what": what, "data": data, **times}, b""

    def _ckpt(self) -> tuple[int, dict[str, Any], bytes]:
        chance = self.chance
        files = [
            [
                f"{chance.choice(('model', 'a/b', 'é'))}-{n}",
                chance.choice((0, 3, 2**60, MAX_OFFSET)),
                f"{n:064x}",
            ]
            for n in range(chance.choice((0, 1, 1, 30)))
        ]
        header = {
            "key": chance.choice(("k", "x" * 200)), "what": chance.choice(("checkpoint", "implicit", "results")),
            "step": chance.choice((None, 1, *LARGE)), "ordinal": chance.choice((None, 0, MAX_OFFSET)),
            "part": chance.choice((0, 1, 999)), "of": chance.choice((1, 2, 10**6)), "world": chance.choice((1, 10**6)),
            "in_code_from": chance.choice((None, 0, MAX_OFFSET)), "archives": chance.choice(([], [0, MAX_OFFSET])),
        }  # fmt: skip
        return FrameType.CKPT, header, json.dumps(files).encode()

    def _final(self) -> tuple[int, dict[str, Any], bytes]:
        size = self.chance.choice((self.log, self.log, 0, *LARGE))
        return FrameType.FINAL, {"size": size, "crc": self.chance.choice((None, 7)), "log_from": 0}, b""

    def _beat(self) -> tuple[int, dict[str, Any], bytes]:
        return FrameType.BEAT, {"n": self.chance.choice((1, *LARGE))}, b""

    def _down(self) -> tuple[int, dict[str, Any], bytes]:
        """What only the server sends, and a second HELLO, in another's name."""
        job, attempt, rank = self.chance.choice(self.others)
        return self.chance.choice((
            (FrameType.HELLO, {"job": job, "attempt": attempt, "rank": rank, "proto": wire.PROTO}, b""),
            (FrameType.ACK, {"log": 5}, b""),
            (FrameType.NACK, {"stream": "log", "code": "GAP", "next": 0}, b""),
        ))  # fmt: skip


def pack(kind: int, header: dict[str, Any], payload: bytes, length: int | None = None) -> bytes:
    """A message with any header and any stated length, as wire.encode would never write it."""
    text = json.dumps(header).encode()[:65_535]
    return struct.pack(">BH", kind, len(text) if length is None else length) + text + payload
