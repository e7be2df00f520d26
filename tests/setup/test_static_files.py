"""Static files under ASGI: the bytes of the file, whole or a range, and slow readers do not block others."""

from __future__ import annotations

import asyncio
import warnings

import pytest
from django.conf import settings
from django.http import StreamingHttpResponse
from django.test import AsyncClient, AsyncRequestFactory

from portal.streaming import StaticFilesMiddleware

ICON = settings.STATICFILES_DIRS[0] / "favicon.svg"


@pytest.mark.parametrize(
    ("method", "headers", "status", "part"),
    [
        ("get", {}, 200, slice(None)),
        ("get", {"range": "bytes=5-24"}, 206, slice(5, 25)),
        ("get", {"if-modified-since": "Fri, 01 Jan 2100 00:00:00 GMT"}, 304, slice(0, 0)),
        ("head", {}, 200, slice(0, 0)),
    ],
)
def test_a_file_is_streamed(method: str, headers: dict[str, str], status: int, part: slice) -> None:
    """Asked as the server does it: the test client would put a list in place of an empty answer's stream."""
    request = getattr(AsyncRequestFactory(), method)("/static/favicon.svg", headers=headers)

    async def fetch() -> tuple[int, bytes]:
        answer = StaticFilesMiddleware(lambda _: pytest.fail("no such file"))(request)
        body = b"".join([block async for block in answer])
        answer.close()
        return answer.status_code, body

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Django warns of an iterator that it must read whole first
        found, body = asyncio.run(fetch())

    assert (found, body) == (status, ICON.read_bytes()[part])


@pytest.mark.django_db  # the end of a request looks at the connection that an earlier test may have left
def test_the_server_uses_it() -> None:
    answer = asyncio.run(AsyncClient().get("/static/favicon.svg"))
    answer.close()

    assert isinstance(answer, StreamingHttpResponse)
    assert answer.is_async
