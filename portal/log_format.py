"""Log lines: a fixed phrase, then fields, readable by people and searchable by programs."""

import logging
import time

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
        line = super().formatMessage(record)
        fields = {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
        return " ".join([line, *(f"{key}={_shown(value)}" for key, value in fields.items())])


def _shown(value: object) -> str:
    """Quoted if it has spaces or control characters, so that a record stays on one line."""
    text = str(value)
    return text if text.isprintable() and " " not in text else repr(text)


class NoProbes(logging.Filter):
    """Drop Django's log record for a 503 from /readyz, which is polled many times a second during a start."""

    def filter(self, record: logging.LogRecord) -> bool:
        return getattr(getattr(record, "request", None), "path", "") != "/readyz"
