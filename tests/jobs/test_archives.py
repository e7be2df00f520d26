"""Uploads: what is sound passes with its figures; what is hostile is refused by name, fast, in little memory."""

from __future__ import annotations

import gzip
import io
import stat
import struct
import tarfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.archives import ArchiveError, Limits, inspect, pack

SMALL = Limits(packed_bytes=10_000_000, unpacked_bytes=20_000_000, files=100)


def zipped(files: Iterable[tuple[str | zipfile.ZipInfo, bytes]]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return target.getvalue()


def tarred(entries: Iterable[tuple[tarfile.TarInfo, bytes]], *, pax: dict[str, str] | None = None) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz", pax_headers=pax or {}) as archive:
        for entry, content in entries:
            entry.size = entry.size or len(content)
            archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def tar_file(name: str, content: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def tar_special(name: str, kind: bytes, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    return entry, b""


def zip_link(name: str, target: str = "/etc/passwd") -> tuple[zipfile.ZipInfo, bytes]:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry, target.encode()


def tar_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return tar_special(name, tarfile.SYMTYPE, target)


Links = list[tuple[str, str]]


def linked_zip(links: Links) -> bytes:
    return zipped([("a/b/c.py", b"1"), *(zip_link(*link) for link in links)])


def linked_tar(links: Links) -> bytes:
    return tarred([tar_file("a/b/c.py"), *(tar_link(*link) for link in links)])


INSIDE: dict[str, Links] = {
    "a neighbor": [("a/latest", "b")],
    "up and down": [("a/b/up", "../b/c.py")],
    "the top": [("a/top", "..")],
    "a chain": [("one", "two"), ("two", "a/three"), ("a/three", "b/c.py")],
    "through a link to a folder": [("short", "a/b"), ("file", "short/c.py"), ("other", "short/../b/c.py")],
    "something made later": [("best.pt", "runs/best/model.pt")],
}
OUTSIDE: dict[str, Links] = {
    "absolute": [("link", "/etc/passwd")],
    "above the top": [("link", "../x")],
    "above from a folder": [("a/b/link", "../../../x")],
    "a chain to above": [("one", "two"), ("two", "a/three"), ("a/three", "../../x")],
    "a link to a folder, then up": [("a/b/flat", "../../d"), ("d/f.py", "../a"), ("out", "a/b/flat/../../x")],
    "a chain whose end is absolute": [("one", "two/x"), ("two", "/etc")],
    "itself": [("link", "link")],
    "a loop": [("one", "two"), ("two", "one")],
    "41 links": [(f"l{n}", f"l{n + 1}") for n in range(41)],
    "nothing": [("link", "")],
    "a backslash": [("link", "..\\x")],
    "invisible": [("link", "a\u202eb")],
    "long": [("link", "a/" * 200)],
}


def encrypted() -> bytes:
    content = bytearray(zipped([("a.py", b"x")]))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(mark) + offset] |= 1
    return bytes(content)


def wrong_checksum() -> bytes:
    content = zipped([(zipfile.ZipInfo("a.py"), b"print(1)")])
    return content.replace(b"print(1)", b"print(2)")


def damaged_tar() -> bytes:
    plain = bytearray(gzip.decompress(tarred([tar_file("a"), tar_file("b"), tar_file("c")])))
    plain[1024 + 148] ^= 0xFF
    return gzip.compress(bytes(plain))


def lying_zip_size() -> bytes:
    """The directory says 10 bytes, the content is 50 MB."""
    content = bytearray(zipped([("a", b"\0" * 50_000_000)]))
    at = content.index(b"PK\x01\x02")
    struct.pack_into("<L", content, at + 24, 10)
    return bytes(content)


def giant_pax_header() -> bytes:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 500_000_000
    return gzip.compress(header.tobuf(tarfile.USTAR_FORMAT) + b"\0" * 5_000_000)


def chained_headers() -> bytes:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 0
    return gzip.compress(header.tobuf(tarfile.USTAR_FORMAT) * 5_000)


def answer(content: bytes) -> str:
    """Return "sound", or the code of the refusal; anything else that is raised is a fault of ours."""
    try:
        inspect(io.BytesIO(content), limits=SMALL)
    except ArchiveError as error:
        return error.code
    return "sound"


HOSTILE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "no archive": ("archive_unknown", lambda: b"hello"),
    "nothing at all": ("archive_unknown", lambda: b""),
    "plain tar": ("archive_unknown", lambda: gzip.decompress(tarred([tar_file("a")]))),
    "empty zip": ("archive_empty", lambda: zipped([])),
    "folders only": ("archive_empty", lambda: zipped([("a/", b"")])),
    "zip bomb": ("archive_too_large", lambda: zipped([("a", b"\0" * 100_000_000)])),
    "tar bomb": ("archive_too_large", lambda: tarred([tar_file("a", b"\0" * 100_000_000)])),
    "zip with a wrong size": ("archive_corrupt", lying_zip_size),
    "too many in zip": ("archive_too_many_files", lambda: zipped((f"f{n}", b"") for n in range(101))),
    "too many in tar": ("archive_too_many_files", lambda: tarred(tar_file(f"f{n}") for n in range(101))),
    "zip slip": ("archive_unsafe_path", lambda: zipped([("../../x", b"")])),
    "tar slip": ("archive_unsafe_path", lambda: tarred([tar_file("a/../../x")])),
    "absolute zip": ("archive_unsafe_path", lambda: zipped([("/etc/passwd", b"")])),
    "absolute tar": ("archive_unsafe_path", lambda: tarred([tar_file("/etc/passwd")])),
    "backslashes": ("archive_unsafe_path", lambda: zipped([("..\\x", b"")])),
    "drive letter": ("archive_unsafe_path", lambda: zipped([("C:x", b"")])),
    "name of 4096": ("archive_unsafe_path", lambda: tarred([tar_file("x" * 4096)])),
    "control in name": ("archive_unsafe_path", lambda: zipped([("a\x1b[31m", b"")])),
    "bidi in name": ("archive_unsafe_path", lambda: zipped([("a\u202egnp.py", b"")])),
    "symlink in zip": ("archive_link", lambda: zipped([zip_link("a")])),
    "symlink in tar": ("archive_link", lambda: tarred([tar_special("a", tarfile.SYMTYPE, "/etc/passwd")])),
    "file below a link in zip": ("archive_link", lambda: zipped([zip_link("d", "a"), ("d/x", b"")])),
    "file below a link in tar": ("archive_link", lambda: tarred([tar_link("d", "a"), tar_file("d/x")])),
    "link below a link": (
        "archive_link",
        lambda: tarred([tar_link("d", "a"), tar_link("d/x", "y"), tar_file("f")]),
    ),
    "link in place of a folder": (
        "archive_name_clash",
        lambda: tarred([tar_file("d/x"), tar_link("d", "a")]),
    ),
    "link given twice": ("archive_name_clash", lambda: tarred([tar_link("d", "a"), tar_link("d", "b")])),
    "links alone": ("archive_empty", lambda: tarred([tar_link("d", "a")])),
    "link with an unsafe name": (
        "archive_unsafe_path",
        lambda: tarred([tar_file("f"), tar_link("../d", "a")]),
    ),
    "hard link": ("archive_link", lambda: tarred([tar_file("b"), tar_special("a", tarfile.LNKTYPE, "b")])),
    "device": ("archive_link", lambda: tarred([tar_special("a", tarfile.CHRTYPE)])),
    "pipe": ("archive_link", lambda: tarred([tar_special("a", tarfile.FIFOTYPE)])),
    "case clash": ("archive_name_clash", lambda: zipped([("a.py", b""), ("A.py", b"")])),
    "folder case clash": ("archive_name_clash", lambda: zipped([("a/b", b""), ("A/c", b"")])),
    "file as folder": ("archive_name_clash", lambda: tarred([tar_file("a"), tar_file("a/b")])),
    "encrypted": ("archive_encrypted", encrypted),
    "wrong checksum": ("archive_corrupt", wrong_checksum),
    "cut zip": ("archive_corrupt", lambda: zipped([("a", b"x" * 1000)])[:-30]),
    "cut tar": ("archive_corrupt", lambda: tarred([tar_file("a", bytes(range(256)) * 99)])[:-300]),
    "gzip checksum": ("archive_corrupt", lambda: tarred([tar_file("a")])[:-8] + b"\0" * 8),
    "damaged tar header": ("archive_corrupt", damaged_tar),
    "gzip of no tar": ("archive_corrupt", lambda: gzip.compress(b"hello")),
    "giant pax header": ("archive_corrupt", giant_pax_header),
    "chained headers": ("archive_corrupt", chained_headers),
}


def test_sound_zip_is_described() -> None:
    found = inspect(io.BytesIO(zipped([("src/", b""), ("src/a.py", b"12345"), ("b", b"1")])))
    assert (found.kind, found.files, found.bytes) == ("zip", 2, 6)
    assert len(found.sha256) == 64


def test_sound_tar_is_described_and_the_stream_rewound() -> None:
    stream = io.BytesIO(
        tarred([tar_special(".", tarfile.DIRTYPE), tar_file("./a.py"), tar_file("d/" + "n" * 150)])
    )
    found = inspect(stream)
    assert (found.kind, found.files, found.bytes, stream.tell()) == ("tar.gz", 2, 2, 0)


@pytest.mark.parametrize("packed", [linked_zip, linked_tar])
@pytest.mark.parametrize("links", INSIDE.values(), ids=INSIDE)
def test_links_that_stay_inside_are_accepted(links: Links, packed: Callable[[Links], bytes]) -> None:
    assert inspect(io.BytesIO(packed(links))).files == 1


@pytest.mark.parametrize("packed", [linked_zip, linked_tar])
@pytest.mark.parametrize("links", OUTSIDE.values(), ids=OUTSIDE)
def test_links_that_leave_the_archive_are_refused_and_named(
    links: Links, packed: Callable[[Links], bytes]
) -> None:
    with pytest.raises(ArchiveError) as caught:
        inspect(io.BytesIO(packed(links)))
    assert caught.value.code == "archive_link"
    assert caught.value.entry in [name for name, _ in links]


def test_ten_thousand_links_through_each_other_are_checked_in_bounded_time() -> None:
    deep = "/".join(["x"] * 20)
    links = [("l0", deep), *((f"l{n}", f"l{n // 2}/../" + "x/../" * 40 + "x") for n in range(1, 9_000))]
    began = time.process_time()
    inspect(io.BytesIO(linked_tar(links)))
    assert time.process_time() - began < 20


@pytest.mark.parametrize("pack_of", ["zip", "tar"])
def test_all_bad_entries_are_reported_at_once(pack_of: str) -> None:
    names = ["ok/a.py", "../x", "/y", "a\\b", "OK", "b.py"]
    if pack_of == "zip":
        content = zipped([*((name, b"1") for name in names), zip_link("link")])
    else:
        content = tarred([*map(tar_file, names), tar_special("link", tarfile.SYMTYPE, "/etc/passwd")])
    with pytest.raises(ArchiveError) as caught:
        inspect(io.BytesIO(content))
    faults = [(fault.entry, fault.code) for fault in (caught.value, *caught.value.others)]
    assert faults == [
        ("../x", "archive_unsafe_path"),
        ("/y", "archive_unsafe_path"),
        ("a\\b", "archive_unsafe_path"),
        ("OK", "archive_name_clash"),
        ("link", "archive_link"),
    ]


def test_an_unreadable_entry_is_reported_after_the_bad_ones_and_the_list_is_bounded() -> None:
    with pytest.raises(ArchiveError) as caught:
        inspect(io.BytesIO(zipped([("../x", b""), ("a", b"\0" * 100_000_000)])), limits=SMALL)
    assert [fault.code for fault in (caught.value, *caught.value.others)] == [
        "archive_unsafe_path",
        "archive_too_large",
    ]
    with pytest.raises(ArchiveError) as caught:
        inspect(io.BytesIO(tarred(tar_file(f"../{n}") for n in range(90))), limits=SMALL)
    assert len(caught.value.others) == 49


def test_same_name_twice_is_a_clash() -> None:
    with pytest.raises(ArchiveError) as caught:
        inspect(io.BytesIO(tarred([tar_file("a"), tar_file("a")])))
    assert caught.value.code == "archive_name_clash"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archive_is_refused_by_name_quickly_and_in_little_memory(name: str) -> None:
    code, build = HOSTILE[name]
    stream = io.BytesIO(build())
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(ArchiveError) as caught:
            inspect(stream, limits=SMALL)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert caught.value.code == code
    assert "\x1b" not in str(caught.value)
    assert time.process_time() - began < 2
    assert peak < 16_000_000


def test_more_names_than_are_allowed_are_refused_before_they_are_read() -> None:
    stream = io.BytesIO(zipped((f"{n:0200d}", b"") for n in range(40_000)))
    began = time.process_time()
    with pytest.raises(ArchiveError) as caught:
        inspect(stream)
    assert caught.value.code == "archive_too_many_files"
    assert time.process_time() - began < 0.2


def test_more_bytes_than_may_be_uploaded_are_refused() -> None:
    with pytest.raises(ArchiveError) as caught:
        inspect(io.BytesIO(zipped([("a", b"x")])), limits=Limits(packed_bytes=50))
    assert caught.value.code == "archive_too_large"


def test_packed_files_are_the_same_bytes_in_any_order_and_pass_the_check() -> None:
    files = [("b.py", "print('ü')\n"), ("a/c.py", "")]
    assert pack(files) == pack(reversed(files))
    found = inspect(io.BytesIO(pack(files)))
    assert (found.kind, found.files, found.bytes) == ("tar.gz", 2, 12)


@given(st.binary(max_size=400), st.sampled_from([b"", b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b\x08\x00"]))
def test_any_bytes_give_an_answer_or_a_named_error(content: bytes, magic: bytes) -> None:
    assert answer(magic + content).startswith(("sound", "archive_"))


@given(st.data())
def test_any_damage_to_a_sound_archive_gives_an_answer_or_a_named_error(data: st.DataObject) -> None:
    base = data.draw(
        st.sampled_from([zipped([("a/b.py", b"x" * 50)]), tarred([tar_file("a/b.py", b"x" * 50)])])
    )
    content = bytearray(base)
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    assert answer(bytes(content)).startswith(("sound", "archive_"))
