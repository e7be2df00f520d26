"""Ray's client, run by the interpreter that has Ray, in the network of the head node: one line of JSON in for each
question, one line out.

    python ray_client.py ADDRESS

In: {"do": "line", "entrypoint": a command, "working_dir": a folder to hand in, or null}: seconds from the submit until
the log that the client is given has the line `first line`, once the job has succeeded. {"do": "submit", "job": the body
of the request, "count", "connections"}: seconds that it took. {"do": "states"}: how many jobs are in which. {"do":
"ready"}: true, once the head node takes jobs. Out: {"answer": this}.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

POLL_S = 0.01  # as of the platform's client
START_S, WITHIN_S = 180.0, 120.0
LINE = "first line"


def first_line_s(client: Any, entrypoint: str, working_dir: str | None) -> float:
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
    until(lambda: client.get_job_status(job) == "SUCCEEDED")
    return took


def submit_many(server: str, job: Mapping[str, Any], count: int, connections: int) -> float:
    """Submit this job so often over so many connections, by the request that Ray's own client sends; seconds."""
    body = json.dumps(job)

    def submit(count: int) -> None:
        with contextlib.closing(HTTPConnection(server, timeout=60)) as connection:
            for _ in range(count):
                connection.request("POST", "/api/jobs/", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                answered = response.read()
                if response.status != 200:
                    raise RuntimeError(f"{response.status} {answered!r}")

    shares = [len(range(count)[place::connections]) for place in range(connections)]
    began = time.monotonic()
    with ThreadPoolExecutor(connections) as threads:
        list(threads.map(submit, shares))
    return time.monotonic() - began


def states(server: str) -> Counter[str]:
    """How many of the jobs that were submitted are in which state."""
    with contextlib.closing(HTTPConnection(server, timeout=60)) as connection:
        connection.request("GET", "/api/jobs/")
        response = connection.getresponse()
        listed = response.read()
    if response.status != 200:
        raise RuntimeError(f"{response.status} {listed!r}")
    return Counter(job["status"] for job in json.loads(listed))


def main() -> None:
    from ray.job_submission import JobSubmissionClient  # here, so that tests can read this file without Ray

    server, began = sys.argv[1], time.monotonic()
    while True:
        try:
            client = JobSubmissionClient(f"http://{server}")
            client.submit_job(entrypoint="true")
            break
        except (ConnectionError, RuntimeError):  # nothing listens yet, or nothing that starts jobs is there
            if time.monotonic() - began > START_S:
                raise
            time.sleep(0.5)
    does: dict[str, Callable[..., Any]] = {
        "ready": lambda: True,
        "line": lambda **asked: first_line_s(client, **asked),
        "submit": lambda **asked: submit_many(server, **asked),
        "states": lambda: states(server),
    }
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps({"answer": does[asked.pop("do")](**asked)}), flush=True)


if __name__ == "__main__":
    main()
