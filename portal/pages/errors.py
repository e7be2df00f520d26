"""Error pages: static in spirit (no query, no script needed), in both themes, with a way onward."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

TEXTS = {
    400: ("That request makes no sense here", "Check the address, or go back and try again."),
    403: ("You may not do this", "Ask a manager of the tenant for the role that it needs."),
    404: ("Nothing here", "There is no such page, or it is not yours to see."),
    429: ("Too many tries", "Wait a few minutes, then try again."),
    500: ("Something broke on our side", "It was recorded. Try again; your jobs are not affected."),
    503: (
        "The database does not answer",
        "Running jobs go on. This page comes back by itself; try again in a moment.",
    ),
}


def error_page(request: HttpRequest, status: int) -> HttpResponse:
    """The page of one status; the theme is the cookie's."""
    title, text = TEXTS[status]
    context = {"theme": request.COOKIES.get("theme", ""), "title": title, "text": text}
    return render(request, "errors/page.html", context, status=status)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return error_page(request, 400)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return error_page(request, 403)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return error_page(request, 404)


def broken(request: HttpRequest) -> HttpResponse:
    return error_page(request, 500)
