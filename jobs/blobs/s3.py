"""Bytes in a bucket of an S3-compatible store.

Small files come through the web process and go to the store as one object. Large ones travel between learners and the
store itself, by URLs that this process signs; it never sees their bytes. A signed URL of a part holds the part's
SHA-256, which the store compares with what arrives. The library reads credentials, region and endpoint from AWS_*.
"""

from __future__ import annotations

import base64
import heapq
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from http import HTTPStatus
from operator import itemgetter
from typing import IO, Any, BinaryIO, cast
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ReadTimeoutError

from jobs.blobs.calls import places
from jobs.blobs.errors import StoreSilent, StoreUnavailable
from jobs.blobs.store import BLOCK, MARK, Link, Part, Partial, number_of

SIGNED_FOR_S = 900
"""How long a URL is valid: long enough for one part on a slow network, short for one that leaks."""
IN_MEMORY = 4 * 1024 * 1024
TRIES = 2
"""Of each request. A learner's own request ends after 30 s, and it sends another one."""
CONFIG = Config(
    connect_timeout=3,
    read_timeout=15,  # without a byte
    retries={"mode": "standard", "max_attempts": TRIES},
    max_pool_connections=32,
    signature_version="s3v4",
    # The checksums that we name are enough; others are newer than many stores.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)
CHECK = Config(connect_timeout=2, read_timeout=3, retries={"mode": "standard", "max_attempts": 1})
"""For the check of the store's health, which other work of its thread waits for."""
ONCE = Config(retries={"mode": "standard", "max_attempts": 1})
"""For what is asked again by the learner."""
MISSING = frozenset({"404", "NoSuchKey", "NoSuchUpload", "NotFound"})


class S3Store:
    """Objects named <prefix>/<key>. place: s3://bucket or s3://bucket/prefix."""

    receives_pieces = False

    def __init__(self, place: str) -> None:
        parts = urlsplit(place)
        self.bucket, self.prefix = parts.netloc, parts.path.strip("/")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        session = boto3.session.Session()
        self._s3: Any = session.client("s3", region_name=region, config=CONFIG)
        self._once: Any = session.client("s3", region_name=region, config=CONFIG.merge(ONCE))
        self._impatient: Any = session.client("s3", region_name=region, config=CONFIG.merge(CHECK))

    def check(self) -> None:
        try:
            with _translated():
                self._impatient.head_bucket(Bucket=self.bucket)
        except FileNotFoundError as error:
            raise StoreUnavailable(f"There is no bucket {self.bucket}.") from error

    def room(self) -> int | None:
        return None

    # --- whole objects

    def put(self, key: str, content: IO[bytes], sha256: str) -> None:
        with _call():
            self._s3.put_object(Body=content, ChecksumSHA256=_base64(sha256), **self._at(key))

    def scratch(self) -> AbstractContextManager[IO[bytes]]:
        return cast(AbstractContextManager[IO[bytes]], tempfile.SpooledTemporaryFile(IN_MEMORY))

    def partial(self, key: str) -> AbstractContextManager[Partial]:
        raise NotImplementedError("pieces are not collected here: see receives_pieces")

    def open(self, key: str, start: int = 0, *, streamed: bool = False) -> BinaryIO:
        call = _translated if streamed else _call
        with call():
            size = int(self._s3.head_object(**self._at(key))["ContentLength"])
        return cast(BinaryIO, io.BufferedReader(_Object(self._s3, self._at(key), size, start, call), BLOCK))

    def exists(self, key: str) -> bool:
        return self.size(key) is not None

    def size(self, key: str) -> int | None:
        """Bytes of an object; None if there is none."""
        try:
            with _call():
                return int(self._s3.head_object(**self._at(key))["ContentLength"])
        except FileNotFoundError:
            return None

    def remove(self, key: str) -> None:
        with _call():
            self._s3.delete_object(**self._at(key))
            for upload in self._uploads(self._name(key)):
                if upload["Key"] == self._name(key):
                    self._abort(upload["Key"], upload["UploadId"])

    def changed_since(self, key: str, moment: float) -> bool:
        with _call():
            uploads = [one for one in self._uploads(self._name(key)) if one["Key"] == self._name(key)]
            return any(self._newest_part(one) >= moment for one in uploads)

    def _newest_part(self, upload: dict[str, Any]) -> float:
        """When a part of it arrived last (Unix time); now, if it was finished or ended since it was listed."""
        pages = self._s3.get_paginator("list_parts").paginate(
            Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
        )
        try:
            changed_at = [
                part["LastModified"].timestamp() for page in pages for part in page.get("Parts", ())
            ]
        except ClientError as error:
            if _code(error) not in MISSING:
                raise
            return time.time()
        return max([upload["Initiated"].timestamp(), *changed_at])

    def older_than(self, moment: float, after: str = "") -> Iterator[tuple[str, int]]:
        return heapq.merge(self._objects_older_than(moment, after), self._uploads_older_than(moment, after))

    def _objects_older_than(self, moment: float, after: str) -> Iterator[tuple[str, int]]:
        start = self._name("")
        behind = {"StartAfter": self._name(after)} if after else {}
        listing = self._s3.get_paginator("list_objects_v2")
        pages = iter(listing.paginate(Bucket=self.bucket, Prefix=start, **behind))
        while page := _next(pages):
            for found in page.get("Contents", ()):
                key = found["Key"].removeprefix(start)
                if found["LastModified"].timestamp() < moment and (number := number_of(key)):
                    yield key, number

    def _uploads_older_than(self, moment: float, after: str) -> Iterator[tuple[str, int]]:
        start = self._name("")
        with _call():
            uploads = self._uploads(start)
        for upload in sorted(uploads, key=itemgetter("Key")):
            key = upload["Key"].removeprefix(start)
            if key > after and (number := number_of(key)) and self._is_older(upload, moment):
                yield key, number

    def _is_older(self, upload: dict[str, Any], moment: float) -> bool:
        with _call():
            return self._newest_part(upload) < moment

    def mark(self, new: str = "") -> str:
        with _call():
            if new:
                self._s3.put_object(Body=new.encode(), **self._at(MARK))
            try:
                return str(self._s3.get_object(**self._at(MARK))["Body"].read().decode())
            except ClientError as error:
                if _code(error) in MISSING:
                    return ""
                raise

    def _uploads(self, start: str) -> list[dict[str, Any]]:
        pages = self._s3.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=start)
        return [upload for page in pages for upload in page.get("Uploads", ())]

    # --- parts, which learners send here themselves

    def start(self, key: str) -> str:
        """Begin an upload in parts; returns its name."""
        with _call():
            made = self._s3.create_multipart_upload(ChecksumAlgorithm="SHA256", **self._at(key))
        return str(made["UploadId"])

    def sign_part(self, key: str, upload_id: str, part: Part) -> Link:
        """A link by which exactly these bytes can be sent as this part."""
        checksum = _base64(part.sha256)
        url = self._s3.generate_presigned_url(
            "upload_part",
            Params={
                "UploadId": upload_id, "PartNumber": part.number, "ContentLength": part.size,
                "ChecksumSHA256": checksum, **self._at(key),
            },
            ExpiresIn=SIGNED_FOR_S,
        )  # fmt: skip
        return Link(url, {"x-amz-checksum-sha256": checksum})

    def parts(self, key: str, upload_id: str) -> list[Part]:
        """What has arrived, by number. Raises FileNotFoundError for an upload that the store does not know."""
        return [
            Part(part["PartNumber"], part["Size"], base64.b64decode(part["ChecksumSHA256"]).hex())
            for part in self._list(key, upload_id)
            if part.get("ChecksumSHA256")
        ]

    def _list(self, key: str, upload_id: str) -> list[dict[str, Any]]:
        with _call():
            pages = self._s3.get_paginator("list_parts").paginate(UploadId=upload_id, **self._at(key))
            return [part for page in pages for part in page.get("Parts", ())]

    def finish(self, key: str, upload_id: str, wanted: Sequence[Part]) -> None:
        """Have one object made of the parts. The store compares their SHA-256 once more.

        It may still be at it afterwards: a large object takes longer than a call, and some stores answer a second
        request at once as if the first were done.
        """
        tags = {part["PartNumber"]: part["ETag"] for part in self._list(key, upload_id)}
        parts = [
            {
                "PartNumber": part.number,
                "ETag": tags.get(part.number, ""),
                "ChecksumSHA256": _base64(part.sha256),
            }
            for part in wanted
        ]
        with _call(), suppress(ReadTimeoutError):
            self._once.complete_multipart_upload(
                UploadId=upload_id, MultipartUpload={"Parts": parts}, **self._at(key)
            )

    def abort(self, key: str, upload_id: str) -> None:
        with _call():
            self._abort(self._name(key), upload_id)

    def _abort(self, name: str, upload_id: str) -> None:
        try:
            self._s3.abort_multipart_upload(Bucket=self.bucket, Key=name, UploadId=upload_id)
        except ClientError as error:
            if _code(error) not in MISSING:
                raise

    def link(self, key: str) -> Link:
        """Where the bytes can be read."""
        url = self._s3.generate_presigned_url("get_object", Params=self._at(key), ExpiresIn=SIGNED_FOR_S)
        return Link(url, {})

    # --- names

    def _name(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self._name(key)}


Call = Callable[[], AbstractContextManager[None]]


class _Object(io.RawIOBase):
    """An object as a file: one request for what is read in order, another one after each jump."""

    def __init__(self, s3: Any, at: dict[str, str], size: int, start: int, call: Call) -> None:
        self._s3, self._object, self._size, self._at = s3, at, size, start
        self._call = call
        self._body: Any = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        target = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if target != self._at:
            self._leave()
        self._at = target
        return target

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self._size:
            return 0
        try:
            content = self._read(len(buffer))
        except StoreSilent:  # once more, from where it stopped
            self._leave()
            content = self._read(len(buffer))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

    def _read(self, most: int) -> bytes:
        with self._call():
            if self._body is None:
                self._body = self._s3.get_object(Range=f"bytes={self._at}-", **self._object)["Body"]
            found: bytes = self._body.read(most)
            return found

    def _leave(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

    def close(self) -> None:
        self._leave()
        super().close()


def _base64(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def _translated() -> Iterator[None]:
    """FileNotFoundError for what is not there, StoreUnavailable for everything else that the library raises."""
    try:
        yield
    except ClientError as error:
        if _code(error) in MISSING:
            raise FileNotFoundError(str(error)) from error
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        kind = StoreSilent if status >= HTTPStatus.INTERNAL_SERVER_ERROR else StoreUnavailable
        raise kind(f"The blob store refused: {error}") from error
    except BotoCoreError as error:
        raise StoreSilent(f"The blob store does not respond: {error}") from error


@contextmanager
def _call() -> Iterator[None]:
    """In one of this process's places for calls."""
    with places.one(), _translated():
        yield


def _next(pages: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    with _call():
        return next(pages, None)
