"""Archives of code on their way: from whom, and whether the disk has room, before they are read; where bodies wait.

All that do not fit into memory, learners' pieces as well, wait on the disk of the data folder, whose minimum of free
space counts: the machine's folder for temporary files may be small, and all programs of the machine need it.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler

from jobs.disk import disk_of
from jobs.tokens import Grant
from portal.live.identity import caller
from tenants import access
from tenants.models import User
from tenants.roles import Permission

UPLOADS = re.compile(r"/api/v1/tenants/([^/]+)/uploads\Z")
AT_ONCE = 2
"""Of one user, per web process."""
COPIES = 2
"""The body, and the archive in it, until it is stored."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Whose body it is. user: None for a learner. is_wanted: whether the path may have a large body of theirs. room:
    bytes for which the disk has room."""

    user: int | None
    is_wanted: bool
    room: int


def sender_of(path: str, headers: Sequence[tuple[bytes, bytes]]) -> Sender | None:
    """None for a caller who is not known. In a thread: it reads the database and looks at the disk."""
    found = caller(path, headers)
    if found is None:
        return None
    uploads = UPLOADS.match(path)
    if isinstance(found, Grant) or uploads is None:
        return Sender(None, True, 0)
    return Sender(found.pk, _may_upload(found, uploads[1]), disk_of(folder()).room)


def _may_upload(user: User, slug: str) -> bool:
    tenant = access.find_tenant(user, slug)
    return tenant is not None and access.may(user, Permission.SUBMIT, tenant.pk)


def folder() -> Path:
    """Where bodies wait; a web server without a data folder has the machine's."""
    data: Path = settings.LUTHIER_DATA
    return data if os.access(data, os.W_OK) else Path(tempfile.gettempdir())


class Arrivals:
    """Those of this process that are being read or judged. Only for the event loop's thread."""

    def __init__(self) -> None:
        self._by_user: Counter[int] = Counter()
        self._bytes = 0

    def has_place(self, user: int) -> bool:
        return self._by_user[user] < AT_ONCE

    def has_room(self, room: int, size: int) -> bool:
        """Whether this one fits besides those under way. What these have written already counts twice."""
        return self._bytes + COPIES * size <= room

    def begin(self, user: int, size: int) -> None:
        self._by_user[user] += 1
        self._bytes += COPIES * size

    def end(self, user: int, size: int) -> None:
        self._bytes -= COPIES * size
        self._by_user[user] -= 1
        if not self._by_user[user]:
            del self._by_user[user]


class ArrivedFile(FileUploadHandler):
    """Django's handler of large files in a form, with a file that has no name and ends with the process."""

    def new_file(self, *arguments: Any, **more: Any) -> None:
        super().new_file(*arguments, **more)
        self.file = tempfile.TemporaryFile(dir=folder())  # noqa: SIM115 (the form's)

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        with self._closed_without_room():
            self.file.write(raw_data)

    def file_complete(self, file_size: int) -> UploadedFile:
        with self._closed_without_room():
            self.file.seek(0)  # writes what is buffered
        return UploadedFile(
            self.file, self.file_name, self.content_type, file_size, self.charset, self.content_type_extra
        )

    @contextmanager
    def _closed_without_room(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            with suppress(OSError):  # what is buffered has no room either
                self.file.close()
            raise

    def upload_interrupted(self) -> None:
        if hasattr(self, "file"):
            self.file.close()
