"""One process under supervision, as a value: what to run, when it counts as ready, how to end it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from signal import Signals


@dataclass(frozen=True)
class Service:
    """A long-running process.

    ready: awaited again and again after each start; true once the service does its work.
    start_s: seconds it may take to get ready before the first start counts as failed.
    stop_signal, stop_s: how it is asked to end, and the seconds after which it is killed.
    silent_s: seconds after which it is killed before that if it does not answer, as it would while it ends. None: it
    need not.
    on_parent_death: the signal it receives when the supervisor dies by kill -9.
    loaded: it may be a fork of the loader, which has the platform's settings and code (portal.loader).
    reads_settings: it gets the platform's settings, with secrets among them, in its environment.
    """

    name: str
    title: str
    command: list[str]
    ready: Callable[[], Awaitable[bool]]
    env: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 60
    stop_signal: Signals = Signals.SIGTERM
    stop_s: float = 10
    silent_s: float | None = None
    on_parent_death: Signals = Signals.SIGTERM
    stopping_note: str = ""
    reads_settings: bool = True
    loaded: bool = False


def backoff_s(failures: int) -> float:
    """Seconds to wait before the next start after this number of short runs in a row: 0.2, 0.4, 0.8 … 30."""
    return min(30.0, 0.2 * 2 ** min(failures, 10))
