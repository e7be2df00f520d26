"""Ray's own client, run by the interpreter that has Ray: one line of JSON in for each job, one line out.

    python ray_client.py ADDRESS

In: {"entrypoint": a command, "working_dir": a folder to hand in, or null}. Out: {"first_line_s": seconds from the
submit until the log that the client is given has the line `first line`}, once the job has succeeded.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from ray.job_submission import JobStatus, JobSubmissionClient

POLL_S = 0.01  # as of the platform's client
WITHIN_S = 120.0
LINE = "first line"


def first_line_s(client: JobSubmissionClient, entrypoint: str, working_dir: str | None) -> float:
    """Seconds. RuntimeError says what became of a job that did not print the line, or failed."""
    began = time.monotonic()
    job = client.submit_job(
        entrypoint=entrypoint, runtime_env={"working_dir": working_dir} if working_dir else None
    )

    def until(look: Callable[[], object]) -> float:
        while not look():
            if time.monotonic() - began > WITHIN_S:
                raise RuntimeError(f"{client.get_job_info(job)}\n{client.get_job_logs(job)}")
            time.sleep(POLL_S)
        return time.monotonic() - began

    took = until(lambda: LINE in client.get_job_logs(job).splitlines())
    until(lambda: client.get_job_status(job) == JobStatus.SUCCEEDED)
    return took


def main() -> None:
    client = JobSubmissionClient(sys.argv[1])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(
            json.dumps({"first_line_s": first_line_s(client, asked["entrypoint"], asked["working_dir"])}),
            flush=True,
        )


if __name__ == "__main__":
    main()
