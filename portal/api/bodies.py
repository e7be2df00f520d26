"""Bodies: a request's is read once, with a size limit, as strict JSON or as the media type that the operation takes;
a response's is JSON, whatever the Accept header says.

Strict: NaN, duplicate keys, lone surrogates and deep nesting, which Python accepts, are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from rest_framework import exceptions
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from jobs.serialization import json_bytes
from jobs.spec import SpecError
from jobs.spec.parsing import JsonReader
from jobs.spec.quantities import BadNumber
from portal.api.errors import MAX_BODY_BYTES, MAX_ERRORS, ApiError, BodyTooLarge, MalformedRequest
from tenants.errors import problem

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
    if not declared.isdecimal() or int(declared) > MAX_BODY_BYTES:
        raise BodyTooLarge
    kind = media_type(request)
    if kind not in kinds:
        if declared != "0" or request.headers.get("Transfer-Encoding"):
            raise UnsupportedMediaType(
                f"Content-Type is {kind[:80] or 'missing'}; send {' or '.join(kinds)}."
            )
        return b""
    body: bytes = request._request.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise BodyTooLarge
    return body


def read_json(request: Request) -> tuple[bytes, Any]:
    """The body's bytes and its value; a missing body is an empty object."""
    raw = read_raw(request, JSON)
    value = strict_json(raw) if raw.strip() else {}
    if not isinstance(value, dict):
        wrong = problem("", "wrong_type", "the body must be a JSON object")
        raise MalformedRequest("The body must be a JSON object.", code="invalid", errors=[wrong])
    return raw, value


def strict_json(body: bytes) -> Any:
    """The value of a JSON text with at most 64 levels and 10,000 keys. Raises MalformedRequest with all problems."""
    try:
        reader = JsonReader(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise MalformedRequest(
            f"The body is not UTF-8 at byte {error.start}.", code="body_not_json"
        ) from error
    try:
        value = reader.read()
    except SpecError as error:
        raise _refused(error.as_list()) from error
    problems = [*(each.as_dict() for each in reader.problems), *_bad_values(value, "")]
    if problems:
        raise _refused(problems[:MAX_ERRORS])
    return value


def _refused(problems: list[dict[str, Any]]) -> MalformedRequest:
    first = problems[0]
    place = f" (line {first['line']}, column {first['column']})" if first.get("line") else ""
    return MalformedRequest(f"{first['message']}{place}.", code=first["code"], errors=problems)


def _bad_values(value: Any, path: str) -> Iterator[dict[str, Any]]:
    """Strings that PostgreSQL cannot store, and invalid numbers; the depth is limited already."""
    if isinstance(value, str):
        if "\0" in value:
            yield problem(path, "nul_in_text", "must not contain the NUL character")
        elif any(0xD800 <= ord(letter) <= 0xDFFF for letter in value):
            yield problem(path, "lone_surrogate", "must not contain half of a surrogate pair")
    elif isinstance(value, dict):
        for key, inner in value.items():
            shown = key.encode("ascii", "backslashreplace").decode()
            yield from _bad_values(key, f"{path}.{shown}".lstrip("."))
            yield from _bad_values(inner, f"{path}.{shown}".lstrip("."))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _bad_values(inner, f"{path}[{index}]")
    elif isinstance(value, BadNumber):
        yield problem(path, "not_a_number", "must be a finite number of at most 18 digits", value.text)


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


class JsonRenderer(BaseRenderer):
    media_type = "application/json"
    format = "json"

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        return b"" if data is None else json_bytes(data)


class AlwaysJson(DefaultContentNegotiation):
    """Always the JSON renderer; operations with another format read the Accept header themselves."""

    def select_renderer(
        self, request: Any, renderers: Any, format_suffix: str | None = None
    ) -> tuple[Any, str]:
        return renderers[0], renderers[0].media_type
