"""The OpenAPI description of an operation: summary, parameters, bodies, errors and examples."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, inline_serializer
from rest_framework import serializers

from portal import problem_details

if TYPE_CHECKING:
    from portal.api.operations import Operation

BYTES = object()
"""The Out of an operation that responds with a file."""
MEANING = {
    400: "The request is wrong; `errors` names each field.",
    401: "No valid token and no session.",
    403: "Your role does not allow this.",
    404: "It does not exist, or you cannot see it.",
    409: "Not possible in the current state.",
    410: "A retention rule removed it; `detail` says which and `removed_at` when.",
    412: "If-Match is stale; the response has the current ETag.",
    413: "The body is too large.",
    415: "The body has an unsupported media type.",
    416: "The range starts after the end.",
    422: "This Idempotency-Key was used for another request.",
    428: "If-Match is required.",
    429: "Too many requests; see Retry-After.",
    503: "The database is not responding, or the server is busy; see Retry-After.",
}


class FieldErrorSerializer(serializers.Serializer[Any]):
    path = serializers.CharField(help_text="resources.learners, changes[0].limit; empty for the whole body")
    code = serializers.CharField()
    message = serializers.CharField()
    got = serializers.CharField(allow_null=True, required=False)
    allowed = serializers.JSONField(allow_null=True, required=False)
    line = serializers.IntegerField(allow_null=True, required=False)
    column = serializers.IntegerField(allow_null=True, required=False)
    near = serializers.CharField(
        allow_null=True,
        required=False,
        help_text="the closest valid one: a name for unknown_field, otherwise a value",
    )


class ProblemSerializer(serializers.Serializer[Any]):
    """RFC 9457 problem details."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField(help_text="stable; programs act on this, not on the text")
    detail = serializers.CharField()
    errors = FieldErrorSerializer(many=True)  # type: ignore[assignment]  # a field; the metaclass takes it off the class
    request_id = serializers.CharField()


class BearerScheme(OpenApiAuthenticationExtension):
    target_class = "portal.api.auth.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "An API token, lut_…"}


class CookieScheme(OpenApiAuthenticationExtension):
    target_class = "portal.api.auth.CookieAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        text = "The portal's session. Requests that change something need X-CSRFToken."
        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME, "description": text}


def describe(each: Operation, method: str) -> dict[str, Any]:
    """Arguments of extend_schema."""
    if each.hidden:
        return {"exclude": True}
    text = " ".join((each.run.__doc__ or "").split())
    summary, _, rest = text.partition(". ")
    return {
        "operation_id": each.run.__name__,
        "summary": summary.rstrip("."),
        "description": rest or text,
        "tags": [each.run.__module__.rpartition(".")[2]],
        "parameters": [*_query(each), *_headers(each, method)],
        "request": _request(each, method),
        "responses": _responses(each, method),
        "examples": list(_examples(each)),
    }


def _query(each: Operation) -> list[Any]:
    return [each.Query] if each.Query().fields else []


def _headers(each: Operation, method: str) -> list[OpenApiParameter]:
    if method == "post":
        text = "1 to 128 printable characters; a repeat with the same key and body gets the same response"
        return [
            OpenApiParameter("Idempotency-Key", OpenApiTypes.STR, OpenApiParameter.HEADER, description=text)
        ]
    if method in ("patch", "put") or 412 in each.fails:
        text = "the ETag that was read; 412 if it is stale"
        if each.needs_version:
            text += ", 428 without the header; * replaces whatever is there"
        return [
            OpenApiParameter(
                "If-Match",
                OpenApiTypes.STR,
                OpenApiParameter.HEADER,
                description=text,
                required=each.needs_version,
            )
        ]
    return []


def _request(each: Operation, method: str) -> Any:
    if method not in ("post", "put", "patch"):
        return None
    if "multipart/form-data" in each.kinds:
        return {"multipart/form-data": each.In}
    if each.kinds:
        return dict.fromkeys(each.kinds, OpenApiTypes.OBJECT)
    return {"application/json": each.In} if each.In else None


def _responses(each: Operation, method: str) -> dict[Any, Any]:
    fails = {400, 401, 404, 503, *each.fails}
    if method != "get":
        fails |= {403, 413, 415}
    if method == "post":
        fails |= {409, 422, 429}
    if method in ("patch", "put"):
        fails.add(412)
    if each.needs_version:
        fails.add(428)
    found: dict[Any, Any] = {
        (code, problem_details.CONTENT_TYPE): OpenApiResponse(ProblemSerializer, description=MEANING[code])
        for code in sorted(fails)
    }
    if each.Out is BYTES:
        kinds = each.also or ("application/octet-stream",)
        return {(each.status, kind): OpenApiTypes.BINARY for kind in kinds} | found
    for kind in each.also:
        found[(each.status, kind)] = OpenApiTypes.OBJECT
    return {(each.status, "application/json") if each.also else each.status: _out(each)} | found


def _out(each: Operation) -> Any:
    if each.Out is None:
        return OpenApiResponse(description="Done; no body.")
    if not each.many:
        return each.Out
    return _list_of(each.Out)


@cache
def _list_of(item: type[serializers.Serializer[Any]]) -> Any:
    fields = {
        "items": item(many=True),
        "next": serializers.CharField(allow_null=True, help_text="cursor of the next page"),
    }
    return inline_serializer(f"{item.__name__}List", fields)


def _examples(each: Operation) -> Any:
    if each.request_example is not None:
        kind = "application/yaml" if isinstance(each.request_example, str) else None
        yield OpenApiExample(
            "request", each.request_example, request_only=True, media_type=kind or "application/json"
        )
    if each.response_example is not None:
        value = {"items": [each.response_example], "next": None} if each.many else each.response_example
        yield OpenApiExample("response", value, response_only=True, status_codes=[str(each.status)])
