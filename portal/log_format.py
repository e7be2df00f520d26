"""Log lines: a fixed phrase, then fields, readable by people and searchable by programs."""

import logging
import time
from typing import Any

from django.utils.functional import LazyObject

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}


class FieldFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO jobs.lifecycle: job moved job=3f9k… from=QUEUED to=DEPLOYING`."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _printable(record.message)
        line = super().formatMessage(record)
        fields = {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
        return " ".join([line, *(f"{key}={_shown(value)}" for key, value in fields.items())])

    def formatException(self, ei: Any) -> str:
        """Indented, so that no line of a message that a user sent looks like a record."""
        return "\n".join(f"  {_printable(line)}" for line in super().formatException(ei).splitlines())


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _shown(value: object) -> str:
    """Quoted if it has spaces or control characters, so that a record stays on one line."""
    text = str(value)
    return text if text.isprintable() and " " not in text else repr(text)


class WhoAsked(logging.Filter):
    """Add to what Django logs of a refused request who asked and from where.

    Without asking the database: of who was not looked up for the request, the name is not known.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        request = getattr(record, "request", None)
        if request is not None:
            record.address = request.META.get("REMOTE_ADDR", "")
            user = vars(request).get("_cached_user") or vars(request).get("user")
            record.user = "" if isinstance(user, LazyObject) or user is None else user.get_username()
        return True


class NoProbes(logging.Filter):
    """Drop Django's log record for a 503 from /readyz, which is polled many times a second during a start."""

    def filter(self, record: logging.LogRecord) -> bool:
        return getattr(getattr(record, "request", None), "path", "") != "/readyz"
