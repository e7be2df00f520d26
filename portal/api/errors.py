"""The only place of the REST API where an exception becomes a status code. A response lists all errors of the request.

The 404 for an object that the caller may not see equals the 404 for a missing one, except for the request id.
"""

from __future__ import annotations

import logging
import math
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.http import Http404, HttpResponse, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from rest_framework import exceptions as drf

from jobs import errors as jobs
from jobs.blobs import BlobGone, StoreUnavailable
from jobs.disk import DISK_FULL
from jobs.retries import database_away
from portal import budgets
from portal.api.fields import WrongFields, all_wrong
from portal.problem_details import RETRY_AFTER_S, problem
from tenants import errors as tenants
from tenants.audit import request_id

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 1024 * 1024
MAX_ERRORS = 50
"""Further errors are left out of a response."""

STATUS: dict[type[Exception], HTTPStatus] = {
    jobs.JobNotFound: HTTPStatus.NOT_FOUND,
    jobs.JobForbidden: HTTPStatus.FORBIDDEN,
    jobs.IllegalTransition: HTTPStatus.CONFLICT,
    jobs.TenantSuspended: HTTPStatus.CONFLICT,
    jobs.TooManySubmissions: HTTPStatus.TOO_MANY_REQUESTS,
    jobs.SpecInvalid: HTTPStatus.BAD_REQUEST,
    jobs.RuntimeInUse: HTTPStatus.CONFLICT,
    jobs.RuntimeOfTree: HTTPStatus.CONFLICT,
    jobs.CheckpointNotFound: HTTPStatus.BAD_REQUEST,
    jobs.RemovedByRetention: HTTPStatus.GONE,
    jobs.CodeInvalid: HTTPStatus.BAD_REQUEST,
    jobs.CodeNotStored: HTTPStatus.SERVICE_UNAVAILABLE,
    jobs.DiskIsFull: HTTPStatus.SERVICE_UNAVAILABLE,
    jobs.JobChanged: HTTPStatus.PRECONDITION_FAILED,
    jobs.IdempotencyKeyInvalid: HTTPStatus.BAD_REQUEST,
    jobs.IdempotencyKeyReused: HTTPStatus.UNPROCESSABLE_ENTITY,
    jobs.IdempotencyInProgress: HTTPStatus.CONFLICT,
    jobs.JobError: HTTPStatus.BAD_REQUEST,
    tenants.NotFound: HTTPStatus.NOT_FOUND,
    tenants.NotAllowed: HTTPStatus.FORBIDDEN,
    tenants.AdminOnly: HTTPStatus.FORBIDDEN,
    tenants.OwnRoleRaised: HTTPStatus.FORBIDDEN,
    tenants.FieldsInvalid: HTTPStatus.BAD_REQUEST,
    tenants.NameTaken: HTTPStatus.CONFLICT,
    tenants.TenantsNotIsolated: HTTPStatus.CONFLICT,
    tenants.AlreadyMember: HTTPStatus.CONFLICT,
    tenants.LastManager: HTTPStatus.CONFLICT,
    tenants.LastAdmin: HTTPStatus.CONFLICT,
    tenants.UserDisabled: HTTPStatus.CONFLICT,
    tenants.SingleSignOnOff: HTTPStatus.CONFLICT,
    tenants.TooManyPasswords: HTTPStatus.TOO_MANY_REQUESTS,
    tenants.TooManyCodes: HTTPStatus.TOO_MANY_REQUESTS,
    tenants.PasswordsOff: HTTPStatus.CONFLICT,
    tenants.TwoFactorRequired: HTTPStatus.CONFLICT,
    tenants.ProofRequired: HTTPStatus.FORBIDDEN,
    tenants.LimitChanged: HTTPStatus.CONFLICT,
    tenants.Overcommitted: HTTPStatus.CONFLICT,
    tenants.VersionChanged: HTTPStatus.PRECONDITION_FAILED,
    tenants.SecretsUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    tenants.TenantError: HTTPStatus.BAD_REQUEST,
}
"""The status of each service error; the nearest class in the error's MRO counts."""


class ApiError(Exception):
    """A request that is wrong before a service is called."""

    status = HTTPStatus.BAD_REQUEST

    def __init__(self, message: str, *, code: str, errors: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details: dict[str, Any] = {"errors": errors} if errors else {}
        self.headers: dict[str, str] = {}


class MalformedRequest(ApiError):
    """The request is malformed."""


class BodyTooLarge(ApiError):
    """The body is larger than allowed."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE

    def __init__(self) -> None:
        text = f"A body can have at most {MAX_BODY_BYTES} bytes. Send code as an upload."
        super().__init__(text, code="body_too_large")


class NotFoundError(ApiError):
    """The object does not exist, or the caller may not see it."""

    status = HTTPStatus.NOT_FOUND

    def __init__(self) -> None:
        super().__init__(str(tenants.NotFound()), code="not_found")


class VersionRequired(ApiError):
    """A list that several people edit is replaced as a whole, and the request does not say which state it replaces."""

    status = HTTPStatus.PRECONDITION_REQUIRED

    def __init__(self) -> None:
        text = "Send the etag that you read as If-Match, or * to replace whatever is there."
        super().__init__(text, code="version_required")


class NoSuchLearner(ApiError):
    """The job exists, but not this attempt or learner."""

    status = HTTPStatus.NOT_FOUND

    def __init__(self, path: str, got: int, message: str) -> None:
        code = f"{path}_not_found"
        wrong = tenants.problem(path, code, message, got)
        super().__init__(f"There is no such {path}.", code=code, errors=[wrong])


class NoSuchAttempt(NoSuchLearner):
    """The job exists, but has had fewer attempts."""

    def __init__(self, got: int, newest: int) -> None:
        had = f"the newest is {newest}" if newest else "it has not started yet"
        super().__init__("attempt", got, f"this job has no attempt {got}: {had}")


class NoSuchFile(ApiError):
    """The caller may read the job's files, but there is none of this path."""

    status = HTTPStatus.NOT_FOUND

    def __init__(self) -> None:
        super().__init__("There is no such file.", code="artifact_not_found")


class RangeNotSatisfiable(ApiError):
    """The range starts after the last byte."""

    status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE

    def __init__(self, size: int) -> None:
        text = f"The file has {size} bytes, numbered from 0."
        super().__init__(text, code="range_not_satisfiable")
        self.headers["Content-Range"] = f"bytes */{size}"


class TooManyStreams(ApiError):
    """The user's downloads under way are as many as allowed."""

    status = HTTPStatus.TOO_MANY_REQUESTS

    def __init__(self, most: int) -> None:
        wait = "Wait until one of them ends, or cancel one."
        super().__init__(f"You have {most} downloads under way, the limit. {wait}", code="too_many_downloads")
        self.headers["Retry-After"] = str(RETRY_AFTER_S)


class StreamsBusy(ApiError):
    """The downloads of all users together are as many as this web process serves."""

    status = HTTPStatus.SERVICE_UNAVAILABLE

    def __init__(self) -> None:
        text = "As many downloads are under way as this server can send. Try again in a moment."
        super().__init__(text, code="downloads_busy")
        self.headers["Retry-After"] = str(RETRY_AFTER_S)


def error_response(error: Exception) -> HttpResponse:
    """The response to any exception of a request. An unexpected one is logged, and its text is not sent."""
    if isinstance(error, ApiError):
        response = problem(error.status, error.code, str(error), **error.details)
        for name, value in error.headers.items():
            response[name] = value
        return response
    if isinstance(error, tenants.ServiceError):
        return _service_error_response(error)
    if isinstance(error, drf.APIException):
        return _drf_error_response(error)
    if isinstance(error, Http404):
        return error_response(NotFoundError())
    if database_away(error):
        return unavailable(error)
    if isinstance(error, StoreUnavailable):
        logger.warning("request failed: no blob store", extra={"error": str(error)[:300]})
        text = "The store of files is not responding. Nothing was changed; send the request again."
        return _later("store_unavailable", text)
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        logger.warning("request failed: no room", extra={"error": str(error)[:300]})
        return _service_error_response(jobs.DiskIsFull())
    if isinstance(error, BlobGone):
        return problem(HTTPStatus.GONE, "blob_gone", "The bytes of this file are missing in the store.")
    if isinstance(error, RequestDataTooBig):
        return error_response(BodyTooLarge())
    if isinstance(error, MultiPartParserError | UnreadablePostError):
        return problem(HTTPStatus.BAD_REQUEST, "body_not_readable", "The body is not a valid multipart form.")
    if isinstance(error, SuspiciousOperation):
        return problem(HTTPStatus.BAD_REQUEST, "bad_request", "The request is malformed.")
    if isinstance(error, PermissionDenied):
        return problem(HTTPStatus.FORBIDDEN, "not_allowed", "You do not have permission to do this.")
    logger.error("request failed", exc_info=error, extra={"request_id": request_id.get()})
    text = f"Something went wrong on the server. Report request id {request_id.get()} to a platform admin."
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", text)


def unavailable(error: Exception) -> HttpResponse:
    """The database is unavailable, restarting or busy. Nothing was changed, so the request can be sent again."""
    logger.warning("request failed: no database", extra={"error": str(error).strip()[:300]})
    return _later(
        "database_unavailable", "The database is not responding. Nothing was changed; send the request again."
    )


def _later(code: str, text: str) -> HttpResponse:
    response = problem(HTTPStatus.SERVICE_UNAVAILABLE, code, text)
    response["Retry-After"] = str(RETRY_AFTER_S)
    return response


def _service_error_response(error: tenants.ServiceError) -> HttpResponse:
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    if status == HTTPStatus.NOT_FOUND:
        return error_response(NotFoundError())
    response = problem(status, error.code, error.message, **error.details)
    if "etag" in error.details:
        response["ETag"] = error.details["etag"]
    if isinstance(error, jobs.IdempotencyInProgress):
        response["Retry-After"] = "1"
    if isinstance(error, tenants.TooManyPasswords | tenants.TooManyCodes | jobs.TooManySubmissions):
        response["Retry-After"] = str(budgets.WINDOW_S)
    return response


def _drf_error_response(error: drf.APIException) -> HttpResponse:
    if isinstance(error, drf.ValidationError):
        found = error.found if isinstance(error, WrongFields) else all_wrong(error.detail)
        errors = found[:MAX_ERRORS]
        return problem(error.status_code, "invalid", "Some fields are invalid.", errors=errors)
    if isinstance(error, drf.UnsupportedMediaType):
        return problem(error.status_code, "unsupported_media_type", str(error.detail))
    code, text = _CODES.get(type(error), ("bad_request", str(error.detail)))
    if isinstance(error, drf.PermissionDenied) and "CSRF" in str(error.detail):
        code, text = (
            "csrf_failed",
            f"{error.detail} Send the token of the {settings.CSRF_COOKIE_NAME} cookie as X-CSRFToken.",
        )
    response = problem(error.status_code, code, text)
    for name, value in _headers(error).items():
        response[name] = value
    return response


_CODES: dict[type[drf.APIException], tuple[str, str]] = {
    drf.NotAuthenticated: ("not_authenticated", "Sign in, or send Authorization: Bearer with an API token."),
    drf.AuthenticationFailed: ("token_invalid", "This token is unknown, revoked or expired."),
    drf.PermissionDenied: ("not_allowed", "You do not have permission to do this."),
    drf.MethodNotAllowed: ("method_not_allowed", "This path does not support this method; see Allow."),
    drf.Throttled: ("too_many_requests", "Too many requests. Try again after Retry-After seconds."),
    drf.ParseError: ("body_not_readable", "The body does not match its Content-Type."),
}


def _headers(error: drf.APIException) -> dict[str, str]:
    headers = {}
    if auth := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = auth
    if wait_s := getattr(error, "wait", None):
        headers["Retry-After"] = str(math.ceil(wait_s))
    return headers
