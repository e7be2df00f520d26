"""The code of a job on its node: what an archive may make there, and that it is checked again after the server did."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from learner_agent.settings import ShipperSettings
from learner_agent.shipper.http import Client
from learner_agent.shipper.inputs import InputError, fetch_code, unpack

Links = list[tuple[str, str]]


def as_tar(place: Path, links: Links) -> None:
    with tarfile.open(place, "w:gz") as packed:
        for name, target in links:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            packed.addfile(entry)
        entry = tarfile.TarInfo("a/b/c.py")
        entry.size = 8
        packed.addfile(entry, io.BytesIO(b"print(1)"))


def as_zip(place: Path, links: Links) -> None:
    with zipfile.ZipFile(place, "w") as packed:
        for name, target in links:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            packed.writestr(entry, target)
        packed.writestr("a/b/c.py", "print(1)")


KINDS = pytest.mark.parametrize("pack", [as_tar, as_zip])


def unpacked(tmp_path: Path, pack: Callable[[Path, Links], None], links: Links) -> Path:
    archive, code = tmp_path / "code.archive", tmp_path / "code"
    code.mkdir(exist_ok=True)
    pack(archive, links)
    unpack(archive, code)
    return code


@KINDS
def test_links_inside_an_archive_work_where_it_is_unpacked_even_a_second_time(
    tmp_path: Path, pack: Callable[[Path, Links], None]
) -> None:
    links = [("short", "a/b"), ("run.py", "short/c.py"), ("best.pt", "runs/best.pt")]
    for _ in range(2):  # a shipper that was restarted unpacks again
        code = unpacked(tmp_path, pack, links)
    assert (code / "run.py").read_text() == "print(1)"
    assert (code / "run.py").readlink() == Path("short/c.py")
    assert (code / "best.pt").readlink() == Path("runs/best.pt")


@KINDS
@pytest.mark.parametrize(
    "links",
    [
        [("link", "/etc/passwd")],
        [("link", "../x")],
        [("one", "two/x"), ("two", "..")],
        [("a/b/flat", "../../d"), ("d/up", "../a"), ("out", "a/b/flat/../../x")],
    ],
)
def test_no_link_stays_if_one_leads_out(
    tmp_path: Path, links: Links, pack: Callable[[Path, Links], None]
) -> None:
    with pytest.raises(InputError) as caught:
        unpacked(tmp_path, pack, links)
    assert caught.value.code == "data_error"
    assert not [place for place in (tmp_path / "code").rglob("*") if place.is_symlink()]


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    """Neither below one of the same archive nor through one that a program of an earlier try has put there."""
    outside = tmp_path / "outside.py"
    outside.write_text("mine")
    (tmp_path / "code" / "a" / "b").mkdir(parents=True)
    (tmp_path / "code" / "a" / "b" / "c.py").symlink_to(outside)
    unpacked(tmp_path, as_tar, [])
    with pytest.raises(InputError):
        unpacked(tmp_path, as_tar, [("a/b", "../../../elsewhere")])
    assert outside.read_text() == "mine"
    assert (tmp_path / "code" / "a" / "b" / "c.py").read_text() == "print(1)"


def packed(tmp_path: Path) -> bytes:
    as_tar(tmp_path / "packed", [])
    return (tmp_path / "packed").read_bytes()


class Server:
    """Has an archive, for those who ask for it."""

    def __init__(self, content: bytes) -> None:
        self.content, self.asked = content, 0

    def link_of(self, path: str) -> None:
        return None

    async def piece(self, path: str, start: int, size: int) -> bytes:
        self.asked += 1
        return self.content[start : start + size]


@pytest.mark.parametrize(
    ("came", "asked"), [("whole", 0), ("damaged", 1), ("no base64!", 1), (5, 1), (None, 1)]
)
def test_code_that_came_along_whole_is_not_asked_for(tmp_path: Path, came: object, asked: int) -> None:
    content = packed(tmp_path)
    given = {"whole": base64.b64encode(content).decode(), "damaged": base64.b64encode(b"x").decode()}
    server = Server(content)
    folders = SimpleNamespace(model_dir=tmp_path / "code", state_dir=tmp_path / "state")
    code = {
        "url": "/code",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "content": given.get(str(came), came),
    }
    asyncio.run(fetch_code(cast(Client, server), cast(ShipperSettings, folders), code))
    assert (tmp_path / "code" / "a" / "b" / "c.py").read_text() == "print(1)"
    assert server.asked == asked
    assert not list((tmp_path / "state").rglob("code.archive*"))
