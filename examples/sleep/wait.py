"""Occupy a learner without using it: `python wait.py SECONDS`. Prints one line per minute; for load tests."""

import sys
import time

from learner_agent import training

TICKS_PER_S = 5


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    ticks = max(1, round(seconds * TICKS_PER_S))
    for tick in range(waited_before() + 1, ticks + 1):
        time.sleep(1 / TICKS_PER_S)
        second, rest = divmod(tick, TICKS_PER_S)
        if rest == 0:
            training.report(second, total=ticks // TICKS_PER_S, waited_s=second)
            if second % 60 == 0:
                print(f"waited {second} s of {seconds:g}", flush=True)
        if training.halt_requested():
            with training.checkpoint(second) as folder:
                (folder / "tick").write_text(str(tick))
            return
    training.finish()


def waited_before() -> int:
    """Return how many ticks earlier attempts have waited."""
    folder = training.resume_from()
    return int((folder / "tick").read_text()) if folder else 0


if __name__ == "__main__":
    main()
