"""Hold a learner without using it: `python wait.py SECONDS`. Says one line a minute; for load tests of the platform."""

import sys
import time

from learner_agent import training

BEATS_PER_S = 5


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    beats = max(1, round(seconds * BEATS_PER_S))
    for beat in range(waited_before() + 1, beats + 1):
        time.sleep(1 / BEATS_PER_S)
        second, rest = divmod(beat, BEATS_PER_S)
        if rest == 0:
            training.report(second, total=beats // BEATS_PER_S, waited_s=second)
            if second % 60 == 0:
                print(f"waited {second} s of {seconds:g}", flush=True)
        if training.halt_requested():
            with training.checkpoint(second) as folder:
                (folder / "beat").write_text(str(beat))
            return
    training.finish()


def waited_before() -> int:
    """Return the beats that earlier attempts have waited."""
    folder = training.resume_from()
    return int((folder / "beat").read_text()) if folder else 0


if __name__ == "__main__":
    main()
