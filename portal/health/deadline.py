"""Ask several at once and wait a bounded time: what hangs is left behind, and never asked twice at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_asked: dict[str, Future[Any]] = {}  # questions that are under way in this process


def run_together(questions: Mapping[str, Callable[[], T]], *, within_s: float) -> dict[str, T]:
    """The answers that came in time, by name; a question that raised raises here.

    A question that hangs (a frozen daemon, a database behind a dead link) keeps its one thread; whoever asks again
    waits for that one, so that a probe every second leaves no pile of threads and connections.
    """
    deadline = time.monotonic() + within_s
    futures = {name: _ask(name, question) for name, question in questions.items()}
    wait_for(futures.values(), timeout=max(0.0, deadline - time.monotonic()))
    return {name: future.result() for name, future in futures.items() if future.done()}


def _ask(name: str, question: Callable[[], Any]) -> Future[Any]:
    with _lock:
        if (under_way := _asked.get(name)) is not None:
            return under_way
        future = _asked[name] = Future()
    threading.Thread(target=_answer, args=(name, question, future), name=f"ask-{name}", daemon=True).start()
    return future


def _answer(name: str, question: Callable[[], Any], future: Future[Any]) -> None:
    try:
        answer = question()
    except BaseException as error:
        _forget(name)
        future.set_exception(error)
    else:
        _forget(name)
        future.set_result(answer)


def _forget(name: str) -> None:
    with _lock:
        del _asked[name]
