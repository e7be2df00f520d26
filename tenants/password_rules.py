"""What no password may be, beside too short or like its user's name: common, made of this installation's words, leaked.

There are no rules for kinds of characters: they make passwords that people forget and programs guess
(ASVS 6.2.5). docs/operations.md lists the words.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.password_validation import CommonPasswordValidator
from django.core.exceptions import ValidationError

from tenants.models import Membership

logger = logging.getLogger(__name__)

OWN_WORDS = ("luthier",)
FILLERS = ("password", "passwort", "welcome", "admin", "secret", "login", "changeme", "letmein", "test")
"""What is put before or after a word to make it long enough."""
OBVIOUS = frozenset({*FILLERS, "qwerty", "qwertyuiop"})
"""None of these is a password with digits and signs behind it either."""
SHORTEST_WORD, SHORTEST_PIECE = 4, 3
LONGEST_PAIR = 72
"""Characters; two of the common ones have fewer. What is longer is not cut at each of its characters."""
LEFT_MIN = 6
"""Letters that a password has to have beside such words."""
NOT_LETTERS = re.compile(r"[\W\d_]+")
LINE_MAX = 80  # bytes: a digest, a colon and a count


class Common(CommonPasswordValidator):
    """Refuse Django's 20,000 common passwords, two of them in a row, a short text that repeats, and runs of keys.

    Few of the 20,000 are as long as a password here has to be; what people make of them is.
    """

    def validate(self, password: str, user: Any = None) -> None:
        super().validate(password, user)
        text = password.lower().strip()
        if _without_end(text) in OBVIOUS or self._is_made_of_common(text):
            raise ValidationError(
                "This password is made of common ones. Choose four or more words that do not belong together.",
                code="password_too_common",
            )

    def _is_made_of_common(self, text: str) -> bool:
        if any(_repeats(text, length) for length in range(1, 1 + len(text) // 2)) or _runs(text):
            return True
        if len(text) > LONGEST_PAIR:
            return False
        cuts = range(SHORTEST_PIECE, len(text) - SHORTEST_PIECE + 1)
        return text in self.passwords or any(
            text[:cut] in self.passwords and text[cut:] in self.passwords for cut in cuts
        )


def _without_end(text: str) -> str:
    """Without the digits and signs behind its last letter. In linear time, unlike a pattern that ends with $."""
    end = len(text)
    while end and not text[end - 1].isalpha():
        end -= 1
    return text[:end]


def _repeats(text: str, length: int) -> bool:
    """Whether all of it is its first characters again and again, which are short for a password."""
    return length < settings.PASSWORD_MIN_CHARS and (text[:length] * len(text)).startswith(text)


def _runs(text: str) -> bool:
    """Whether each character is the next of the one before: 123456789012, abcdefghijkl."""
    steps = {(ord(after) - ord(before)) % 10 for before, after in pairwise(text)}
    return len(steps) == 1 and (text.isdigit() or steps <= {1, 9})


class OwnWords:
    """Refuse what is little more than a word of this installation: its name and host, the user's tenants."""

    def validate(self, password: str, user: Any = None) -> None:
        rest = password.lower()
        for word in words_of(user):
            rest = rest.replace(word, "")
        if len(rest) == len(password):
            return
        for filler in FILLERS:
            rest = rest.replace(filler, "")
        if len(NOT_LETTERS.sub("", rest)) < LEFT_MIN:
            raise ValidationError(
                "This password is little more than the name of this platform, its address or your tenant. "
                "Add words that have nothing to do with it.",
                code="password_own_words",
            )

    def get_help_text(self) -> str:
        return "Not the name of this platform, its address or your tenant."


def words_of(user: Any) -> list[str]:
    """The words, longest first. Of a user who is not stored, none of tenants."""
    host = urlsplit(settings.LUTHIER_PUBLIC_URL).hostname or ""
    found = {*OWN_WORDS, *re.split(r"[^a-z]+", host)}
    if getattr(user, "pk", None) is not None:
        names = Membership.objects.filter(user=user).values_list("tenant__slug", "tenant__name")
        for slug, name in names:
            together = NOT_LETTERS.sub("", name.lower())
            found |= {slug, NOT_LETTERS.sub("", slug), together, *NOT_LETTERS.split(name.lower())}
    return sorted((word for word in found if len(word) >= SHORTEST_WORD), key=lambda word: (-len(word), word))


class Breached:
    """Refuse a password whose SHA-1 is in the file of LUTHIER_BREACHED_PASSWORDS; without one, none.

    A process keeps the list that it had: one that is removed, replaced by nothing or on a share that is not mounted any
    more is still asked.
    """

    def validate(self, password: str, user: Any = None) -> None:
        path: Path | None = settings.LUTHIER_BREACHED_PASSWORDS
        if path is None:
            return
        try:
            known = is_listed(path, password)
        except OSError as error:
            raise ValidationError(
                "The list of leaked passwords cannot be read, so no password can be set now. Ask a platform admin.",
                code="password_not_checked",
            ) from error
        if known:
            raise ValidationError(
                "This password is in a public list of leaked passwords. Choose another, here and wherever you use it.",
                code="password_breached",
            )

    def get_help_text(self) -> str:
        return "Not a password that is known to have leaked."


def is_listed(path: Path, password: str) -> bool:
    """Whether the file, one SHA-1 per line in ascending order, perhaps with a colon and a count, has the password's.

    Reads about 40 lines of a file of any size. Raises OSError, also if the file is not as it was when it was opened:
    one that is being copied over itself lacks most of its lines.
    """
    digest = hashlib.sha1(password.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
    with _changing:  # so that no one closes the file meanwhile
        kept = _opened(path)
        found = _has(kept.file, digest.upper().encode())
        if not found and _state(kept.file) != kept.state:
            logger.error("the list of leaked passwords was changed in place: replace it by another file")
            raise OSError(f"{path} was changed in place")
        return found


def keep_list() -> None:
    """Open the list of this installation, so that this process still has it when it is away. Never fails."""
    path: Path | None = settings.LUTHIER_BREACHED_PASSWORDS
    if path is not None:
        with suppress(OSError), _changing:
            _opened(path)


class _Kept(NamedTuple):
    """An open list, and its state at that time."""

    file: BinaryIO
    state: tuple[int, int]


_changing = threading.Lock()
_kept: dict[Path, _Kept] = {}
"""The list of this process, by its path: one at most."""


def _opened(path: Path) -> _Kept:
    """The file as it is now, else as this process last had it. Raises OSError if it never had it."""
    before = _kept.get(path)
    try:
        found = path.open("rb")
        if os.fstat(found.fileno()).st_size == 0:
            found.close()
            raise OSError(f"{path} is empty")
    except OSError as error:
        if before is None:
            raise
        extra = {"error": str(error)}
        logger.warning("the list of leaked passwords is away: the last one is used", extra=extra)
        return before
    if before is not None and os.path.sameopenfile(before.file.fileno(), found.fileno()):
        found.close()
        return before
    for each in _kept.values():
        each.file.close()
    _kept.clear()
    _kept[path] = _Kept(found, _state(found))
    return _kept[path]


def _state(file: BinaryIO) -> tuple[int, int]:
    """What changes if the file is written to, but not if it is renamed or removed."""
    stat = os.fstat(file.fileno())
    return stat.st_size, stat.st_mtime_ns


def _has(file: BinaryIO, wanted: bytes) -> bool:
    low, high = 0, os.fstat(file.fileno()).st_size
    while low < high:  # the line that is wanted begins in [low, high), if there is one
        middle = (low + high) // 2
        begins, line = _line_from(file, middle)
        if not line or begins >= high:
            high = middle
            continue
        found = line[:40].upper()
        if found == wanted:
            return True
        if found < wanted:
            low = begins + len(line)
        else:
            high = middle
    return False


def _line_from(file: BinaryIO, at: int) -> tuple[int, bytes]:
    """The first line that begins at this byte or after, and where. The position of the file, which forked processes
    share, is not used."""
    start = max(0, at - 1)
    read = os.pread(file.fileno(), 2 * LINE_MAX, start)
    skipped = len(_first_line(read)) if at else 0
    return start + skipped, _first_line(read[skipped:])


def _first_line(text: bytes) -> bytes:
    end = text.find(b"\n", 0, LINE_MAX)
    return text[: end + 1] if end >= 0 else text[:LINE_MAX]
