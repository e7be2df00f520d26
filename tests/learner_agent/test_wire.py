"""Frames: what is written is read back, and any bytes at all are a frame or a WireError."""

from __future__ import annotations

import json
import math
import random
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner_agent import wire, wire_fields
from learner_agent.wire import JobIntent, WireError, decode, encode
from learner_agent.wire_fields import LATEST_MS, MAX_OFFSET

offsets = st.integers(0, MAX_OFFSET)
texts = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=40)
names = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1, max_size=40
)
intents = st.builds(JobIntent, st.sampled_from(["RUN", "HALT", "CANCEL"]), offsets, st.integers(0, 604_800))
cursors = st.dictionaries(names, offsets, max_size=4)
steps = st.text("abcdefgh.-_0123456789é", min_size=1, max_size=10).filter(
    lambda step: step not in (".", "..")
)
paths = st.lists(steps, min_size=1, max_size=4).map("/".join)
files = st.lists(
    st.tuples(paths, offsets, st.text("0123456789abcdef", min_size=64, max_size=64)), max_size=4,
    unique_by=lambda entry: entry[0],
)  # fmt: skip
points = st.lists(st.tuples(names, offsets, st.integers(0, LATEST_MS), st.floats()), max_size=5)


@st.composite
def data_frames(draw: st.DrawFn) -> wire.Data:
    pieces = draw(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=6))
    payload = b"".join(pieces)
    reads = [(len(piece), draw(st.integers(0, 1000))) for piece in pieces]
    at = draw(st.integers(0, MAX_OFFSET - len(payload)))
    return wire.Data(at, payload, draw(st.integers(0, LATEST_MS - 1000)), reads, zlib.crc32(payload))


frames: st.SearchStrategy[Any] = st.one_of(
    st.builds(wire.Hello, job=names, attempt=st.integers(1, 10**6), rank=st.integers(0, 10**6)),
    st.builds(wire.Welcome, session=texts, now_ms=offsets, log=offsets, intent=intents, metrics=cursors),
    data_frames(),
    st.builds(wire.Data, st.integers(0, MAX_OFFSET - 2**40), gone=st.integers(10, 2**40), lines=st.integers(0, 10)),
    st.builds(wire.Metric, names, offsets, offsets, points, st.none() | offsets),
    st.builds(wire.Metric, names, offsets, offsets, points, steps=st.tuples(offsets, offsets),
              fell_ms=st.none() | st.integers(0, LATEST_MS)),
    st.builds(wire.Event, st.integers(1, 10**9), st.sampled_from(["phase", "exit", "error", "halt_seen"]), offsets,
              st.dictionaries(names, st.none() | st.booleans() | texts | offsets, max_size=4)),
    st.builds(wire.Ckpt, names, step=st.none() | offsets, saved_ns=st.none() | offsets, files=files, message=texts),
    st.builds(wire.Ack, offsets, cursors, offsets, st.booleans(), st.none() | intents),
    st.builds(wire.Nack, texts, st.sampled_from(["GAP", "CRC", "SEALED"]), offsets, texts),
    st.builds(wire.Beat, offsets, st.none() | intents),
    st.builds(wire.Final, offsets, st.none() | st.integers(0, 2**32 - 1), offsets),
    st.builds(wire.Bye, texts, st.integers(0, 3_600_000), st.booleans()),
)  # fmt: skip


def same(left: Any, right: Any) -> bool:
    if isinstance(left, wire.Metric):
        return repr(left) == repr(right)  # NaN is no equal of itself
    return bool(left == right)


@given(frames)
def test_every_frame_is_read_back_as_it_was_written(frame: Any) -> None:
    assert same(decode(encode(frame)), frame)


@settings(max_examples=1000)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_frame_or_a_wire_error(message: bytes) -> None:
    try:
        decode(message)
    except WireError:
        pass


@settings(max_examples=500)
@given(
    st.sampled_from(list(wire.FrameType)),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    ),
    st.binary(max_size=30),
    st.data(),
)
def test_any_json_in_any_field_is_a_frame_or_a_wire_error(
    kind: wire.FrameType, value: Any, payload: bytes, data: st.DataObject
) -> None:
    fields = list(wire.FRAMES[kind].__struct_fields__)
    header = dict.fromkeys(data.draw(st.lists(st.sampled_from(fields), max_size=len(fields))), value)
    text = json.dumps(header).encode()
    try:
        decode(struct.pack(">BH", kind, len(text)) + text + payload)
    except WireError:
        pass


def test_hello_always_states_the_version() -> None:
    """A default is not sent: a server of the next version would take this shipper for one of its own."""
    assert f'"proto":{wire.PROTO}'.encode() in encode(wire.Hello("3f9k2m7qx4ta", 1, 0, wire.PROTO))
    silent = decode(encode(wire.Hello("3f9k2m7qx4ta", 1, 0)))
    assert isinstance(silent, wire.Hello)
    assert silent.proto != wire.PROTO


@pytest.mark.parametrize(
    ("kind", "header", "frame"),
    [
        (
            wire.FrameType.HELLO,
            {
                "job": "3f9k2m7qx4ta",
                "attempt": 1,
                "rank": 0,
                "proto": 2,
                "boot": "b",
                "log_from": 4,
                "gen_seen": 1,
            },
            wire.Hello("3f9k2m7qx4ta", 1, 0, 2),
        ),
        (wire.FrameType.BEAT, {"n": 7, "at_ms": 5, "unsent": 9, "gen_seen": 1}, wire.Beat(7)),
    ],
)
def test_fields_that_only_an_older_end_knows_are_ignored(kind: int, header: Any, frame: Any) -> None:
    text = json.dumps(header).encode()
    assert decode(struct.pack(">BH", kind, len(text)) + text) == frame


def mutations(count: int, seed: int) -> list[bytes]:
    """Sound frames with bytes changed, cut or added, and plain noise."""
    chance = random.Random(seed)
    sound = [
        encode(wire.Hello("3f9k2m7qx4ta", 1, 0, wire.PROTO)),
        encode(wire.Data(0, b"abc\n", 5, [(4, 0)], zlib.crc32(b"abc\n"))),
        encode(wire.Metric("jsonl", 0, 9, [("loss", 1, 2, 0.5)])),
        encode(wire.Event(1, "exit", 5, {"code": 0})),
        encode(wire.Ckpt("k", step=3, files=[("a/b", 3, "0" * 64)])),
        encode(wire.Final(4, 7)),
    ]
    made = []
    for _ in range(count):
        message = bytearray(
            chance.choice(sound) if chance.random() < 0.8 else chance.randbytes(chance.randrange(200))
        )
        for _ in range(chance.randrange(4)):
            if message:
                message[chance.randrange(len(message))] = chance.randrange(256)
        made.append(
            bytes(message[: chance.randrange(len(message) + 1)] if chance.random() < 0.2 else message)
        )
    return made


def test_a_hundred_thousand_damaged_frames_raise_nothing_but_wire_errors() -> None:
    taken = refused = 0
    for message in mutations(100_000, seed=20261121):
        try:
            decode(message)
            taken += 1
        except WireError:
            refused += 1
    assert taken > 1000
    assert refused > 10_000


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"\x03\xff\xff" + b"[" * 65_535, "DATA header: Expected `object`"),
        (b"\xff\x00\x02{}", "type: 255"),
        (b"\x03\x00\x09{", "header: expected 9 bytes, got 1"),
        (b"\x09\x00\x02{}", "missing required field `n`"),
        (b"\x09\x00\x07" + b'{"n":1}' + b"x", "payload: BEAT carries none"),
        (b"\x09\x00\x0a" + b'{"n":1e99}', r"Expected `int`.*\$\.n"),
        (b"\x09\x00\x0a" + b'{"n":true}', r"Expected `int`.*\$\.n"),
        (b"\x09\x00\x0a" + b'{"n": NaN}', "BEAT header: JSON is malformed"),
        (b"\x00" * (wire.MAX_MESSAGE + 1), "message: larger than"),
    ],
)
def test_a_refusal_names_the_field_and_what_is_needed(message: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        decode(message)


def data_with(**changes: Any) -> bytes:
    header = {"off": 0, "crc": zlib.crc32(b"ab"), "t0": 0, "reads": [[2, 0]]} | changes
    text = json.dumps(header).encode()
    return struct.pack(">BH", wire.FrameType.DATA, len(text)) + text + b"ab"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"crc": 1}, "crc"),
        ({"off": -1}, "off"),
        ({"off": 2**63}, "off"),
        ({"off": MAX_OFFSET - 1}, "off"),
        ({"t0": LATEST_MS + 1}, "t0"),
        ({"t0": LATEST_MS, "reads": [[2, 1]]}, "reads"),
        ({"reads": [[1, 0]]}, "reads"),
        ({"gone": 5}, "gone"),
        ({"reads": [[2]]}, "reads"),
    ],
)
def test_a_log_frame_that_contradicts_itself_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(WireError, match=says):
        decode(data_with(**changes))


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a/./b", "", "a\\b", "x\0y", "a/..", "x" * 1025])
def test_a_manifest_path_that_leads_anywhere_else_is_refused(path: str) -> None:
    text = b'{"key":"k"}'
    payload = json.dumps([[path, 1, "0" * 64]]).encode()
    with pytest.raises(WireError, match="files"):
        decode(struct.pack(">BH", wire.FrameType.CKPT, len(text)) + text + payload)


def test_numbers_that_json_does_not_know_travel_as_words() -> None:
    points = [("a", 1, 2, math.nan), ("b", 1, 2, math.inf), ("c", 1, 2, -math.inf)]
    read = decode(encode(wire.Metric("jsonl", 0, 1, points)))
    assert [str(value) for *_, value in read.points] == ["nan", "inf", "-inf"]


@pytest.mark.parametrize(
    "text", [b'"\\u0000"', b'"a\\u0000b"', b'"\\ud800"', b'"\\ud800x"', b'"\\udc00\\ud800"', b'"\xff"']
)
def test_text_that_the_database_cannot_store_is_refused(text: bytes) -> None:
    header = b'{"n":1,"what":"error","data":{"message":' + text + b"}}"
    with pytest.raises(WireError, match="EVENT header"):
        decode(struct.pack(">BH", wire.FrameType.EVENT, len(header)) + header)


def test_a_time_after_the_year_9999_is_none() -> None:
    """Programs write milliseconds where seconds are due, and Python reads no such time from the database."""
    points = [("a", 1, LATEST_MS, 0.5), ("a", 2, LATEST_MS + 1, 0.5)]
    read = decode(encode(wire.Metric("jsonl", 0, 1, points)))
    assert isinstance(read, wire.Metric)
    assert [at_ms for _, _, at_ms, _ in read.points] == [LATEST_MS, 0]


def test_steps_that_fell_back_are_said_with_where_they_are_now() -> None:
    with pytest.raises(WireError, match="fell_ms: steps are missing"):
        decode(encode(wire.Metric("jsonl", 0, 1, fell_ms=5)))


def test_a_log_ends_where_its_offsets_end() -> None:
    assert decode(encode(wire.Data(MAX_OFFSET - 5, gone=5))) == wire.Data(MAX_OFFSET - 5, gone=5)
    with pytest.raises(WireError, match="off: a log has at most"):
        decode(encode(wire.Data(MAX_OFFSET - 5, gone=6)))


def test_text_about_nul_is_taken() -> None:
    event = wire.Event(1, "error", data={"message": "NUL is written \\u0000"})
    assert decode(encode(event)) == event


def test_text_that_is_not_unicode_is_a_wire_error_before_it_is_sent() -> None:
    with pytest.raises(WireError, match="EVENT: text must be valid Unicode"):
        encode(wire.Event(1, "error", data={"message": "\ud800"}))


def test_what_is_needed_of_many_files_fits_a_frame_whatever_its_numbers() -> None:
    """The server's upload ids and offsets may be any; more than one frame holds is left for the next response."""
    most = [(n, wire_fields.MAX_OFFSET - n, wire_fields.MAX_OFFSET) for n in range(wire_fields.MAX_FILES)]
    left, frames = most, 0
    while left:
        fits = wire.need_that_fits(left)
        assert wire.encode(wire.Ckpt("\x7f" * 200, state="UPLOADING", need=fits))
        left, frames = left[len(fits) :], frames + 1
    assert 1 < frames < 10
    assert wire.need_that_fits([]) == []
