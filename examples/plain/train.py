"""A program that does not use Luthier's calls: it prints, saves a file, and reads that file when it starts again.

It fits a curve to the yearly mean number of sunspots by gradient descent. The platform reads metrics from the printed
lines by the rule in job.yaml, stops the program with SIGTERM, stores the files in CHECKPOINT_DIR, and restores them
before it starts the program again.
"""

import json
import math
import os
import signal
import sys
import time

# Yearly mean sunspot numbers 1950-1989 (Royal Observatory of Belgium, SILSO, version 1; rounded).
SUNSPOTS = [
    84, 69, 31, 14, 4, 38, 142, 190, 185, 159, 112, 54, 38, 28, 10, 15, 47, 94, 106, 106,
    105, 67, 69, 38, 35, 16, 13, 28, 93, 155, 155, 140, 116, 67, 46, 18, 13, 29, 100, 158,
]  # fmt: skip
STEPS = int(os.environ.get("STEPS", "400"))
STEP_S = float(os.environ.get("STEP_S", "0.1"))
SAVE = os.path.join(os.environ.get("CHECKPOINT_DIR", "."), "weights.json")

stopping = False


def main() -> None:
    signal.signal(signal.SIGTERM, request_stop)
    step, weights = load()
    while step < STEPS and not stopping:
        loss = descend(weights)
        step += 1
        print(f"step={step} loss={loss:.6f}", flush=True)
        if step % 10 == 0:
            save(step, weights)
        time.sleep(STEP_S)
    save(step, weights)
    print(f"stopped after step {step}" if stopping else f"done: weights {weights}", flush=True)
    sys.exit(143 if stopping else 0)


def request_stop(*_: object) -> None:
    global stopping
    stopping = True


def load() -> tuple[int, list[float]]:
    """Return step and weights as last saved, or step 0 and zeros."""
    try:
        with open(SAVE) as source:
            saved = json.load(source)
    except FileNotFoundError:
        return 0, [0.0] * 7
    print(f"found {SAVE}: continuing at step {saved['step']}", flush=True)
    return saved["step"], saved["weights"]


def save(step: int, weights: list[float]) -> None:
    """Write another file and rename it, so that a reader never finds a partial one."""
    with open(SAVE + ".new", "w") as target:
        json.dump({"step": step, "weights": weights}, target)
        target.flush()
        os.fsync(target.fileno())
    os.replace(SAVE + ".new", SAVE)


def descend(weights: list[float]) -> float:
    """Take one gradient step on the squared error, in place; return the mean error before it."""
    slopes, loss = [0.0] * len(weights), 0.0
    for year, spots in enumerate(SUNSPOTS):
        terms = features(year)
        error = sum(weight * term for weight, term in zip(weights, terms, strict=True)) - spots / 100
        loss += error * error
        slopes = [slope + error * term for slope, term in zip(slopes, terms, strict=True)]
    for index, slope in enumerate(slopes):
        weights[index] -= 0.1 * slope / len(SUNSPOTS)
    return loss / len(SUNSPOTS)


def features(year: int) -> list[float]:
    """Sines and cosines of the eleven-year cycle and its overtones, the terms of the regression."""
    angles = [2 * math.pi * year / period for period in (10.6, 9.7, 5.3)]
    return [1.0] + [wave(angle) for angle in angles for wave in (math.sin, math.cos)]


if __name__ == "__main__":
    main()
