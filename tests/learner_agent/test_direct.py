"""A large file on its way to the store: which bytes go as which part, and under which hashes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, cast

import pytest

from learner_agent.shipper import direct
from learner_agent.shipper.direct import Sending
from learner_agent.shipper.http import Client, Unreachable
from learner_agent.shipper.outputs import NotWhole

PART = 1000


class Store:
    """Client and store in one: takes a part only with its own SHA-256."""

    def __init__(self, have: list[list[Any]]) -> None:
        self.have = have
        self.parts: dict[int, bytes] = {}
        self.finished: list[str] = []
        self.looks = 0
        self.is_away_after = math.inf

    async def json(self, path: str, *, method: str = "GET", body: bytes = b"", headers: Any = None) -> Any:
        if method == "GET":
            self.looks += 1
            if self.looks > self.is_away_after:
                raise Unreachable("away")
            return {"part_bytes": PART, "parts": self.have, "verified": False}
        sent = json.loads(body)
        if path.endswith("/finish"):
            self.finished = sent["parts"]
            return {"verified": True}
        return {"url": str(sent["number"]), "headers": {"sha256": sent["sha256"]}}

    async def put_file(self, url: str, headers: dict[str, str], source: Any, start: int, size: int) -> None:
        content = os.pread(source.fileno(), size, start)
        assert hashlib.sha256(content).hexdigest() == headers["sha256"]
        self.parts[int(url)] = content


def send(store: Store, content: bytes, place: Path, *, named: bytes | None = None) -> None:
    """named: the bytes whose hash and size the manifest has."""
    place.write_bytes(content)
    listed = content if named is None else named
    with place.open("rb") as source:
        file = Sending(source, place.name, len(listed), sha256(listed))
        asyncio.run(direct.send(cast(Client, store), file, 7, lambda: True))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "BLOCK", 64)


@pytest.mark.parametrize("size", [1, 63, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 7])
@pytest.mark.usefixtures("small_blocks")
def test_each_part_goes_with_its_own_hash(tmp_path: Path, size: int) -> None:
    store, content = Store([]), os.urandom(size)
    send(store, content, tmp_path / "weights")
    wanted = [content[start : start + PART] for start in range(0, size, PART)]
    assert [store.parts[number + 1] for number in range(len(wanted))] == wanted
    assert store.finished == [sha256(part) for part in wanted]


@pytest.mark.usefixtures("small_blocks")
def test_what_the_store_has_is_not_sent_again(tmp_path: Path) -> None:
    content = os.urandom(3 * PART)
    have = [[1, PART, sha256(content[:PART])], [2, PART, sha256(b"other bytes")]]
    store = Store(have)
    send(store, content, tmp_path / "weights")
    assert sorted(store.parts) == [2, 3]


@pytest.mark.parametrize("size", [PART // 2, 2 * PART])
@pytest.mark.usefixtures("small_blocks")
def test_a_file_that_is_not_the_listed_one_is_never_finished(tmp_path: Path, size: int) -> None:
    store, content = Store([]), os.urandom(size)
    with pytest.raises(NotWhole, match="not the file"):
        send(store, content, tmp_path / "weights", named=os.urandom(size))
    with pytest.raises(NotWhole, match="shorter"):
        send(store, content, tmp_path / "weights", named=content + b"more")
    assert store.finished == []


@pytest.mark.parametrize(("after_s", "looks"), [(0.0, 4), (60.0, 1)])
@pytest.mark.usefixtures("small_blocks")
def test_the_server_looks_at_what_has_arrived_while_parts_arrive_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_s: float, looks: int
) -> None:
    monkeypatch.setattr(direct, "LOOK_S", after_s)
    store = Store([])
    send(store, os.urandom(3 * PART), tmp_path / "weights")
    assert store.looks == looks


@pytest.mark.usefixtures("small_blocks")
def test_a_look_that_fails_costs_the_upload_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "LOOK_S", 0.0)
    store = Store([])
    store.is_away_after = 1
    send(store, os.urandom(3 * PART), tmp_path / "weights")
    assert (sorted(store.parts), len(store.finished), store.looks) == ([1, 2, 3], 3, 4)
