"""What the person at the terminal reads: short calm lines, each with the seconds since the start."""

import sys
import time


class Report:
    """Writes `  1.2 s  PostgreSQL is ready`. Never fails: the terminal may be gone while we still have work to do."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def say(self, line: str) -> None:
        self._write(f"{self.seconds:6.1f} s  {line}\n")

    def plain(self, text: str) -> None:
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except (OSError, ValueError):
            pass
