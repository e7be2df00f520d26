"""From POST to the first log line in the store, minus what the bare process takes to print it.

The bare process is the same interpreter running the same program from a shell on the same machine, timed in the
same run. So is a second platform whose programs are not confined: the difference is what the sandbox costs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.record import percentile, record
from tests.platform import Client, running, wait_for

PROGRAM = 'print("first line", flush=True)\n'


def spec() -> dict[str, Any]:
    return {
        "apiVersion": "luthier/v1",
        "name": "first-line",
        "framework": "plain",
        "code": {"files": {"main.py": PROGRAM}},
        "command": "python main.py",
        "resources": {"learners": 1, "gpus": 0, "cpus": 1},
    }


def first_line_s(client: Client) -> float:
    """Seconds from the POST until the line is served."""
    began = time.monotonic()
    job = client.submit(spec())["id"]

    def served() -> bool:
        answer = client.call("GET", f"/jobs/{job}/logs", learner=0)
        return answer.status == 200 and bool(answer.body["lines"])

    wait_for(served, within_s=60, every_s=0.01, what=f"first line of {job}")
    took = time.monotonic() - began
    client.wait_state(job, "COMPLETED")
    return took


def bare_s() -> float:
    began = time.monotonic()
    with subprocess.Popen(
        ["sh", "-c", f"{sys.executable} -c '{PROGRAM}'"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline()
        return time.monotonic() - began


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=50)
    chosen = arguments.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder) / "confined") as confined,
        running(Path(folder) / "open", LUTHIER_LOCAL_SANDBOX="off") as unconfined,
    ):
        ours, without = confined.client(), unconfined.client()
        for client in (ours, without):
            first_line_s(client)  # make the runtime
        rounds = [(first_line_s(ours), bare_s(), first_line_s(without)) for _ in range(chosen.runs)]
    over = [total - bare for total, bare, _ in rounds]
    bare = percentile([bare for _, bare, _ in rounds], 0.5)
    total = percentile([total for total, _, _ in rounds], 0.5)
    record(
        "submit_latency",
        {
            "overhead_p50_s": percentile(over, 0.5),
            "overhead_p99_s": percentile(over, 0.99),
            "bare_p50_s": bare,
            "total_p50_s": total,
            "sandbox_p50_s": total - percentile([without for _, _, without in rounds], 0.5),
        },
        command=f"python -m bench.submit_latency --runs {chosen.runs}",
        baseline="the bare process printing the same line, in the same run; for the sandbox, a platform without it",
        targets={"overhead_p50_s": "≤ 1", "overhead_p99_s": "≤ 2", "sandbox_p50_s": "≤ 0.05"},
    )


if __name__ == "__main__":
    main()
