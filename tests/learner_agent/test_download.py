"""The download of one file: in pieces, several at a time from a store, continued after what an earlier try left."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from learner_agent.shipper import inputs
from learner_agent.shipper.http import Client
from learner_agent.shipper.inputs import CorruptDownload


class Pieces:
    """What a server or its store gives of one file, and which pieces were asked for before an earlier one had come."""

    def __init__(self, content: bytes, monkeypatch: pytest.MonkeyPatch, *, link: str | None) -> None:
        self.content, self.most, self._under_way = content, 0, 0
        self.asked: list[int] = []
        monkeypatch.setattr(Client, "piece", self.piece)
        monkeypatch.setattr(Client, "link_of", lambda client, path: link)

    async def piece(self, path: str, start: int, size: int) -> bytes:
        self.asked.append(start)
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        await asyncio.sleep(0)
        self._under_way -= 1
        return self.content[start : start + size]

    def download(self, target: Path) -> None:
        digest = hashlib.sha256(self.content).hexdigest()
        client = Client("http://127.0.0.1:9", "lsec_x")
        asyncio.run(inputs.download(client, "/file", target, size=len(self.content), sha256=digest))


@pytest.mark.parametrize(("link", "at_once"), [("http://store:9000/file", inputs.AT_ONCE), (None, 1)])
def test_only_a_store_is_asked_for_several_pieces_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str | None, at_once: int
) -> None:
    monkeypatch.setattr(inputs, "PIECE_BYTES", 3)
    pieces = Pieces(bytes(range(100)), monkeypatch, link=link)
    pieces.download(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == pieces.content
    assert pieces.most == at_once


def test_a_download_continues_after_what_an_earlier_try_left_and_checks_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "PIECE_BYTES", 3)
    pieces = Pieces(bytes(range(100)), monkeypatch, link="http://store:9000/file")
    (tmp_path / "file.part").write_bytes(pieces.content[:50])
    pieces.download(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == pieces.content
    assert min(pieces.asked) == 50
    (tmp_path / "other.part").write_bytes(b"damaged")
    with pytest.raises(CorruptDownload):
        pieces.download(tmp_path / "other")
    assert not (tmp_path / "other.part").exists()
