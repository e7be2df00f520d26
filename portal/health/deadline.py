"""Run functions concurrently with a timeout. One that hangs is abandoned, and not started again until it has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_running: dict[str, Future[Any]] = {}  # functions that are running in this process


def run_together(functions: Mapping[str, Callable[[], T]], *, within_s: float) -> dict[str, T]:
    """The results that arrived in time, by name. Raises what a function raised.

    A function that hangs (a frozen daemon, a database behind a dead link) keeps one thread. Another call waits for that
    thread, so that a probe every second does not accumulate threads and connections.
    """
    deadline = time.monotonic() + within_s
    futures = {name: _start(name, function) for name, function in functions.items()}
    wait_for(futures.values(), timeout=max(0.0, deadline - time.monotonic()))
    return {name: future.result() for name, future in futures.items() if future.done()}


def _start(name: str, function: Callable[[], Any]) -> Future[Any]:
    with _lock:
        if (under_way := _running.get(name)) is not None:
            return under_way
        future = _running[name] = Future()
    threading.Thread(target=_run, args=(name, function, future), name=f"check-{name}", daemon=True).start()
    return future


def _run(name: str, function: Callable[[], Any], future: Future[Any]) -> None:
    try:
        result = function()
    except BaseException as error:
        _forget(name)
        future.set_exception(error)
    else:
        _forget(name)
        future.set_result(result)


def _forget(name: str) -> None:
    with _lock:
        del _running[name]
