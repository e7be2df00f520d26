"""The job spec's own validator beside jsonschema's, on one usual spec and on one hostile list.

    python -m bench.spec_validation [--hostile ENTRIES]

Both run over the published schema in one process. docs/adr/0021 rests on these figures.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from jsonschema import Draft202012Validator

from bench.record import record
from jobs.spec.definition import json_schema
from jobs.spec.walk import Walk

REPEATS, ROUNDS = 300, 7
USUAL: dict[str, Any] = {
    "apiVersion": "luthier/v1",
    "name": "mnist-cnn",
    "tags": ["vision", "baseline"],
    "framework": "pytorch",
    "code": {"files": {f"part{n}.py": "print(1)\n" * 50 for n in range(5)}},
    "command": "python part0.py --epochs 5",
    "resources": {"learners": 2, "gpus": 1, "cpus": 2, "memory": "4Gi"},
    "data": [{"name": "mnist", "path": "mnist"}],
    "metrics": [{"pattern": r"step=(?P<step>\d+) loss=(?P<loss>\S+)"}],
    "env": {"LR": "0.1"},
    "time_limit": "12h",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hostile", type=int, default=2000, help="entries of the hostile list")
    entries = parser.parse_args().hostile
    schema = json_schema()
    library = Draft202012Validator(schema)
    own: Callable[[Any], object] = lambda spec: list(Walk({}).faults(spec, schema))  # noqa: E731
    theirs: Callable[[Any], object] = lambda spec: list(library.iter_errors(spec))  # noqa: E731
    # Entries that cannot be sorted make a general check of uniqueItems compare each with each.
    hostile = {**USUAL, "tags": [{"a": n} if n % 2 else n for n in range(entries)]}
    figures = {
        "own_us": usual_us(own),
        "jsonschema_us": usual_us(theirs),
        "own_hostile_ms": once_ms(own, hostile),
        "jsonschema_hostile_ms": once_ms(theirs, hostile),
        "jsonschema_import_ms": import_ms(),
    }
    record(
        "spec_validation",
        figures,
        command=f"python -m bench.spec_validation --hostile {entries}",
        baseline="jsonschema's Draft202012Validator over the same schema and values, in the same run",
    )


def usual_us(validate: Callable[[Any], object]) -> float:
    """Microseconds for the usual spec: the best round's mean."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(REPEATS):
            validate(USUAL)
        best = min(best, (time.perf_counter() - began) / REPEATS)
    return best * 1e6


def once_ms(validate: Callable[[Any], object], spec: Any) -> float:
    began = time.perf_counter()
    validate(spec)
    return (time.perf_counter() - began) * 1e3


def import_ms() -> float:
    """What importing the library costs a fresh process, in milliseconds: the best of five."""
    code = "import time; t = time.perf_counter(); import jsonschema; print(time.perf_counter() - t)"
    runs = [
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        for _ in range(5)
    ]
    return min(runs) * 1e3


if __name__ == "__main__":
    main()
