"""What a form of these pages answers: go on with a message, or say what was wrong and change nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect

from portal.pages.form_once import Outcome, once, say
from tenants.errors import AdminOnly, NotAllowed, NotFound, ServiceError

FORM_HEADER = "X-Luthier-Form"
"""Set by a script that submits a form: the name of the user whose page it is, empty on the login page."""


def problems_of(error: ServiceError) -> list[str]:
    """Every wrong field in a sentence of its own, else the error's."""
    errors = error.details.get("errors") or []
    return [f"{_plain(each['path'])}: {each['message']}." for each in errors] or [error.message]


def act_and_redirect(
    request: HttpRequest, act: Callable[[], object], *, to: str, done: str, level: int = messages.SUCCESS
) -> HttpResponse:
    """Run act, once per form; say done or what was wrong, then go to a page that may be reloaded.

    level: of what is said when it is done; a warning where a thing is worse off now.
    What the caller may not do answers 403, what is not there 404, as everywhere. A script gets 422 and what was wrong.
    """

    def work() -> Outcome:
        act()
        return {}

    try:
        once(request, work)
    except (NotAllowed, AdminOnly) as error:
        raise PermissionDenied(error.message) from error
    except NotFound as error:
        raise Http404 from error
    except ServiceError as error:
        if by_fetch(request):
            return HttpResponse("\n".join(problems_of(error)), status=422, content_type="text/plain")
        for line in problems_of(error):
            messages.error(request, line)
    else:
        say(request, done, level)
    return HttpResponseRedirect(to)


def by_fetch(request: HttpRequest) -> bool:
    """Whether a script submits the form (static/src/ts/submit.ts), which keeps its fields if something is wrong."""
    return FORM_HEADER in request.headers


def sentence(text: str) -> str:
    """A service's message as a sentence: a capital first, one full stop last."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def problem_of(error: ServiceError) -> str:
    """The error as one sentence for the one field of its form."""
    wrong = error.details.get("errors") or []
    return sentence(f"This {wrong[0]['message']}") if wrong else error.message


def _plain(path: str) -> str:
    """changes[0].if_limit reads "Changes 0 if limit"."""
    text = re.sub(r"[_.\[\]]+", " ", path).strip()
    return text[:1].upper() + text[1:]
