"""Request bodies: read once, with a size limit; other media types than the expected ones are refused."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from rest_framework import exceptions
from rest_framework.request import Request

from portal.api import strict_json
from portal.api.errors import ApiError, BodyTooLarge, MalformedRequest
from tenants.errors import problem

MAX_BYTES = 1024 * 1024
JSON = "application/json"
MULTIPART = "multipart/form-data"
CSRF_FIELD = "csrfmiddlewaretoken"
YAML = ("application/yaml", "application/x-yaml", "text/yaml")


class UnsupportedMediaType(ApiError):
    """The body has a media type that the operation does not accept."""

    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE

    def __init__(self, message: str) -> None:
        super().__init__(message, code="unsupported_media_type")


def media_type(request: Request) -> str:
    """The Content-Type without its parameters, in lower case."""
    return request.META.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()


def read_raw(request: Request, *kinds: str) -> bytes:
    """The body as bytes, if it has one of these media types. An empty body may have any."""
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if encoding != "identity":
        raise UnsupportedMediaType(
            f"Content-Encoding {encoding[:40]} is not supported; send the body uncompressed."
        )
    declared = request.META.get("CONTENT_LENGTH") or "0"
    if not declared.isdecimal() or int(declared) > MAX_BYTES:
        raise _too_large()
    kind = media_type(request)
    if kind not in kinds:
        if declared != "0" or request.headers.get("Transfer-Encoding"):
            raise UnsupportedMediaType(
                f"Content-Type is {kind[:80] or 'missing'}; send {' or '.join(kinds)}."
            )
        return b""
    body: bytes = request._request.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        raise _too_large()
    return body


def read_json(request: Request) -> tuple[bytes, Any]:
    """The body's bytes and its value; a missing body is an empty object."""
    raw = read_raw(request, JSON)
    value = strict_json.read(raw) if raw.strip() else {}
    if not isinstance(value, dict):
        wrong = problem("", "wrong_type", "the body must be a JSON object")
        raise MalformedRequest("The body must be a JSON object.", code="invalid", errors=[wrong])
    return raw, value


def files(request: Request) -> list[UploadedFile[Any]]:
    """The files of a multipart body, in order; none for another media type."""
    if media_type(request) != MULTIPART:
        return []
    return [
        file for _, each in request._request.FILES.lists() for file in each if isinstance(file, UploadedFile)
    ]


def form(request: Request) -> dict[str, Any]:
    """The fields of a multipart body by name, files and texts, without the CSRF token. Each may be given once."""
    if media_type(request) != MULTIPART:
        raise UnsupportedMediaType(
            f"Content-Type is {media_type(request)[:80] or 'missing'}; send {MULTIPART}."
        )
    found: dict[str, Any] = {}
    twice: dict[str, list[str]] = {}
    sent: list[tuple[str, list[Any]]] = [*request._request.POST.lists(), *request._request.FILES.lists()]
    for name, each in sent:
        if name in found or len(each) > 1:
            twice[name] = ["Given more than once."]
        found[name] = each[0]
    if twice:
        raise exceptions.ValidationError(twice, code="repeated")
    found.pop(CSRF_FIELD, None)
    return found


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"A body can have at most {MAX_BYTES} bytes. Send code as an upload.")
