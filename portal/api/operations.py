"""Operations of the API: check the query and the body, run the function, build the response, replay a repeated request.

An operation is a function ``(call, **path) -> body | OperationResponse | HttpResponse`` under @operation. ``resource``
assigns the operations of one path to their methods. Errors are raised; portal.api.errors turns them into responses.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.utils.http import parse_etags
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions, serializers
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.serialization import json_bytes
from jobs.services import answer_once
from portal.api import bodies, errors, openapi
from portal.api.auth import CookieAuthentication, TokenAuthentication, spend
from portal.api.bodies import AlwaysJson, JsonRenderer
from portal.api.fields import NoQuery, StrictSerializer, checked
from tenants.audit import REASON_HEADER, REASON_PARAMETER, access_reason, reason_given, request_id
from tenants.models import User

REQUEST_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
UNFIT_IN_A_PATH = re.compile("[\0\ud800-\udfff]")


class EmptyRequest(StrictSerializer):
    """A body without fields."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request as its operation sees it. data and query are validated; body has the raw bytes.

    found: the tenant or job that `authorize` loaded and the caller may change.
    prepared: what `prepare` made, before the transaction of the request's key.
    """

    request: Request
    user: User
    query: Mapping[str, Any]
    data: Any = None
    body: bytes = b""
    found: Any = None
    prepared: Any = None

    @property
    def if_match(self) -> frozenset[str] | None:
        """The ETags of which one must be current; None: no condition. A weak ETag never matches."""
        given = self.request.headers.get("If-Match")
        return None if given is None or given.strip() == "*" else frozenset(parse_etags(given))

    @property
    def reason(self) -> str:
        """The reason that a platform admin gave for reading a foreign tenant's data; kept in the audit log."""
        return access_reason.get()


@dataclass(frozen=True, slots=True)
class OperationResponse:
    """A body with a status or headers that differ from the operation's."""

    body: Any
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


Run = Callable[..., Any]
Authorize = Callable[..., Any]
"""(call, **path) -> the object that the caller may change, or an error. It runs before the body is parsed, so that a
caller without permission learns nothing about the body's shape."""
Prepare = Callable[..., Any]
"""(call, **path) -> the call's `prepared`: what takes long and may be done twice, such as storing bytes. It runs before
the transaction in which a request with an Idempotency-Key is answered."""
Example = Mapping[str, Any]


@dataclass(frozen=True)
class Operation:
    """A function with its request and response serializers, and its documentation."""

    run: Run
    authorize: Authorize | None
    prepare: Prepare | None
    proof: Prepare | None  # in place of prepare, what counts each time; once per Idempotency-Key
    In: type[serializers.Serializer[Any]] | None
    Query: type[serializers.Serializer[Any]]
    Out: Any
    many: bool
    status: int
    kinds: tuple[str, ...]  # media types of a body that the function reads itself
    secret: tuple[str, ...]  # fields of the response that are shown once and never stored
    location: Callable[[Any], str] | None
    per_minute: int | None
    request_example: Example | str | None
    response_example: Example | None
    fails: tuple[int, ...]
    needs_version: (
        bool  # a request without If-Match is refused: it would replace what its caller may not have seen
    )
    also: tuple[str, ...]  # further media types of the response, chosen by Accept; of a file, its own
    hidden: bool  # left out of the OpenAPI document

    def __call__(self, request: Request, **path: str) -> HttpResponseBase:
        """Validate the request, run the function, build the response."""
        if any(UNFIT_IN_A_PATH.search(str(part)) for part in path.values()):
            raise errors.NotFoundError
        key = request.headers.get("Idempotency-Key") if request.method == "POST" else None
        if key is None:
            self._spend(request)
        query = self._checked_query(request)
        assert isinstance(request.user, User)
        call = Call(request, request.user, query)
        found = self.authorize(call, **path) if self.authorize else None
        if self.needs_version and request.headers.get("If-Match") is None:
            raise errors.VersionRequired
        body, data = self._checked_body(request)
        call = replace(call, data=data, body=body, found=found)
        if key is not None:
            return self._respond(self._run_once(call, path, key))
        return self._respond(self.run(self._prepared(call, path), **path))

    def _prepared(self, call: Call, path: Mapping[str, str]) -> Call:
        step = self.prepare or self.proof
        return replace(call, prepared=step(call, **path)) if step else call

    def _checked_query(self, request: Request) -> Mapping[str, Any]:
        values, twice = _query_values(request, self.Query())
        return dict(checked(self.Query(data=values), repeated=twice))

    def _checked_body(self, request: Request) -> tuple[bytes, Any]:
        if request.method not in ("POST", "PUT", "PATCH"):
            return b"", None
        if self.kinds:
            return (
                b"" if "multipart/form-data" in self.kinds else bodies.read_raw(request, *self.kinds)
            ), None
        raw, value = bodies.read_json(request)
        return raw, checked((self.In or EmptyRequest)(data=value))

    def _run_once(self, call: Call, path: Mapping[str, str], key: str) -> Any:
        """Run once per Idempotency-Key. Secrets are not stored: a repeated request gets null in their place, and spends
        nothing of the limit per minute."""
        ran: list[Any] = []
        ready = call

        def prepare() -> None:
            nonlocal ready
            self._spend(call.request)
            ready = self._prepared(call, path)

        def work() -> tuple[int, dict[str, Any]]:
            ran[:] = [self.run(ready, **path)]
            answer = ran[0] if isinstance(ran[0], OperationResponse) else OperationResponse(ran[0])
            kept = orjson.loads(json_bytes(answer.body))
            return answer.status or self.status, kept | {name: None for name in self.secret if name in kept}

        status, body = answer_once(
            user=call.user,
            key=key,
            request_sha256=_hash(call),
            work=work,
            prepare=None if self.proof else prepare,
            proof=prepare if self.proof else None,
            look_first=self.per_minute is not None and not self.proof,
        )
        return ran[0] if ran else OperationResponse(body, status, {"Idempotency-Replayed": "true"})

    def _respond(self, answer: Any) -> HttpResponseBase:
        if isinstance(answer, HttpResponseBase):
            return answer
        if not isinstance(answer, OperationResponse):
            answer = OperationResponse(answer)
        headers = dict(answer.headers)
        if isinstance(answer.body, dict) and answer.body.get("etag"):
            headers["ETag"] = answer.body["etag"]
        if self.location and isinstance(answer.body, dict):
            headers["Location"] = self.location(answer.body)
        return Response(answer.body, status=answer.status or self.status, headers=headers)

    def _spend(self, request: Request) -> None:
        if self.per_minute:
            spend(f"{self.run.__name__}:{request.user.pk}", self.per_minute)


def operation(
    *,
    Out: Any = None,
    authorize: Authorize | None = None,
    prepare: Prepare | None = None,
    proof: Prepare | None = None,
    In: type[serializers.Serializer[Any]] | None = None,
    Query: type[serializers.Serializer[Any]] = NoQuery,
    many: bool = False,
    status: int = 200,
    kinds: tuple[str, ...] = (),
    secret: tuple[str, ...] = (),
    location: Callable[[Any], str] | None = None,
    per_minute: int | None = None,
    request_example: Example | str | None = None,
    response_example: Example | None = None,
    fails: tuple[int, ...] = (),
    needs_version: bool = False,
    also: tuple[str, ...] = (),
    hidden: bool = False,
) -> Callable[[Run], Operation]:
    """Make a function an operation. The examples are for its documentation; with many, response_example is one item."""

    def made(run: Run) -> Operation:
        return Operation(
            run,
            authorize,
            prepare,
            proof,
            In,
            Query,
            Out,
            many,
            status,
            kinds,
            secret,
            location,
            per_minute,
            request_example,
            response_example,
            fails,
            needs_version,
            also,
            hidden,
        )

    return made


class Resource(APIView):
    """One path. Every exception becomes a problem document."""

    authentication_classes = [TokenAuthentication, CookieAuthentication]
    permission_classes = [IsAuthenticated]
    renderer_classes = [JsonRenderer]
    parser_classes = []
    content_negotiation_class = AlwaysJson
    http_method_names = [
        "get",
        "head",
        "post",
        "put",
        "patch",
        "delete",
    ]  # no OPTIONS: not used from other origins

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        given = request.headers.get("X-Request-ID", "")
        number = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        token, reason = request_id.set(number), access_reason.set("")
        try:
            access_reason.set(_reason(request))  # raises if the query cannot be parsed
            response = super().dispatch(request, *args, **kwargs)
            if isinstance(response, Response):
                response.render()
        except Exception as error:  # raised while the response was rendered
            response = errors.error_response(error)
        finally:
            request_id.reset(token)
            access_reason.reset(reason)
        response["X-Request-ID"] = number
        response.headers.setdefault("Cache-Control", "no-store")
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        return response

    def handle_exception(self, exc: Exception) -> Any:
        if isinstance(exc, exceptions.NotAuthenticated | exceptions.AuthenticationFailed):
            exc.auth_header = self.get_authenticate_header(self.request)  # type: ignore[union-attr]  # set before any handler runs
        response = errors.error_response(exc)
        if isinstance(exc, exceptions.MethodNotAllowed):
            response["Allow"] = ", ".join(self.allowed_methods)
        return response


def _reason(request: HttpRequest) -> str:
    return reason_given(request.headers.get(REASON_HEADER), request.GET.get(REASON_PARAMETER))


def resource(**by_method: Operation) -> Callable[..., HttpResponseBase]:
    """The view of one path: resource(get=tenant_list, post=tenant_create)."""
    handlers = {method: _handler(method, each) for method, each in by_method.items()}
    names = "".join(each.run.__name__.title().replace("_", "") for each in by_method.values())
    view = type(f"{names}Resource", (Resource,), {**handlers, "operations": by_method})
    return view.as_view()  # type: ignore[attr-defined]  # of a class made here


def _handler(method: str, each: Operation) -> Callable[..., HttpResponseBase]:
    def handle(self: APIView, request: Request, **path: str) -> HttpResponseBase:
        return each(request, **path)

    handle.__name__ = method
    handle.__doc__ = each.run.__doc__
    return extend_schema(**openapi.describe(each, method))(handle)


def _query_values(request: Request, checker: serializers.Serializer[Any]) -> tuple[dict[str, Any], list[str]]:
    """The query as a dict: a list (repeated or separated by commas) where the serializer has a list, else one value.

    With it the names that were repeated; the dict has their first values.
    """
    values: dict[str, Any] = {}
    twice: list[str] = []
    for name, given in request.query_params.lists():
        if name == REASON_PARAMETER:
            continue
        if isinstance(checker.fields.get(name), serializers.ListField):
            values[name] = [part for text in given for part in text.split(",") if part]
            continue
        values[name] = given[0]
        if len(given) > 1:
            twice.append(name)
    return values, twice


def _hash(call: Call) -> str:
    """The request of an Idempotency-Key: method, path and body. Keyed: it is stored, and a body may have a password."""
    start = f"{call.request.method} {call.request.get_full_path()}\n".encode()
    digest = hmac.new(settings.SECRET_KEY.encode(), start, hashlib.sha256)
    digest.update(call.body)
    for file in bodies.files(call.request) if not call.body else ():
        for piece in file.chunks():
            digest.update(piece)
        file.seek(0)
    return digest.hexdigest()


__all__ = ["Call", "Operation", "OperationResponse", "operation", "resource"]
