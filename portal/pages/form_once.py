"""A form acts once, however often it is sent: its key, what it did and the outcome are one transaction.

``{% form_key %}`` renders the key. A repeat of the same form with the same content gets the first outcome, also after
the process died between the commit and its response (docs/adr/0048-a-form-acts-once.md).
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Callable
from typing import Any

from cryptography.fernet import Fernet
from django.contrib import messages
from django.contrib.messages.storage.base import BaseStorage
from django.http import HttpRequest

from jobs.errors import IdempotencyInProgress
from jobs.services import answer_once
from portal.pages.guard import person

FIELD = "form_key"
REPEATED = "This form was already submitted, so nothing was done again."
Outcome = dict[str, Any]
"""What a repeat needs to know of the first time; it is stored as JSON."""


def new_key() -> str:
    """The key of one rendered form: random, so that others cannot guess it."""
    return secrets.token_urlsafe(18)


def once(
    request: HttpRequest,
    work: Callable[[], Outcome],
    *,
    prepare: Callable[[], object] | None = None,
    proof: Callable[[], object] | None = None,
    part: str = "",
    sealed: tuple[str, ...] = (),
) -> Outcome:
    """Do the work of a submitted form, or return what its first submission returned and say so.

    work is in one transaction with the key, and may be called again after it was interrupted; its errors are raised and
    not kept. prepare: what takes long and may be done twice, before the transaction. proof: in place of it, what
    counts each time, such as a password. part: one of several works of the form, each once. sealed: names of texts in
    the outcome that only the key of the form opens, which the server does not keep. A form without a key acts each
    time. Raises IdempotencyInProgress while the first submission is still being answered.
    """
    key = request.POST.get(FIELD, "")
    if not key:
        if before := prepare or proof:
            before()
        return work()
    ran: list[Outcome] = []

    def first() -> tuple[int, Outcome]:
        outcome = work()
        ran[:] = [outcome]
        return 200, outcome | {name: _cipher(key).encrypt(outcome[name].encode()).decode() for name in sealed}

    digest = _digest(request, part)
    try:
        _, kept = answer_once(
            user=person(request),
            key=f"form:{digest}",
            request_sha256=digest,
            work=first,
            prepare=prepare,
            proof=proof,
        )
    except IdempotencyInProgress as error:
        raise IdempotencyInProgress("This form is still being processed. Try again in a second.") from error
    if ran:
        return ran[0]
    say(request, REPEATED, messages.INFO)
    return kept | {name: _cipher(key).decrypt(kept[name]).decode() for name in sealed}


def _digest(request: HttpRequest, part: str) -> str:
    """What makes two submissions the same: the key, the address and every field; changed content is another action."""
    fields = sorted((name, values) for name, values in request.POST.lists() if name != "csrfmiddlewaretoken")
    text = json.dumps([request.get_full_path(), fields, part])
    return hashlib.sha256(text.encode()).hexdigest()


def _cipher(key: str) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(f"sealed:{key}".encode()).digest()))


def say(request: HttpRequest, text: str, level: int = messages.SUCCESS) -> None:
    """Add a message for the next page, unless it is there: after two clicks both responses may have added it."""
    waiting = messages.get_messages(request)
    assert isinstance(waiting, BaseStorage)
    texts = {str(message) for message in waiting}
    waiting.used = False  # looking at them is not showing them
    if text not in texts:
        messages.add_message(request, level, text)
