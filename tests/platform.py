"""A whole platform for tests and benchmarks: the real `manage.py up` in a folder of its own, and a REST client.

Nothing is faked: the embedded PostgreSQL and Valkey, uvicorn, Celery workers and the local cluster's node daemon run as
processes of their own, so a test may kill any of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from portal.settings.embedded import layout

ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")


def free_port() -> int:
    """Ask the operating system for an unused loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(look: Callable[[], T], *, within_s: float, every_s: float = 0.1, what: str = "") -> T:
    """Look until the answer is true and return it; TimeoutError names what was awaited."""
    deadline = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:g} s: {what or look}")
        time.sleep(every_s)


@dataclass(frozen=True)
class Answer:
    """What the server answered; body is parsed when it is JSON, else bytes."""

    status: int
    body: Any
    headers: Mapping[str, str]


class Client:
    """REST as one user. Paths are relative to /api/v1; errors come back as answers, not exceptions."""

    def __init__(self, url: str, token: str, tenant: str) -> None:
        self.url, self.token, self.tenant = url, token, tenant

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_s: float = 30,
        headers: Mapping[str, str] = {},
        **query: Any,
    ) -> Answer:
        target = f"{self.url}/api/v1{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        request = Request(target, data=data, method=method)
        for name, value in headers.items():
            request.add_header(name, value)
        request.add_header("Authorization", f"Bearer {self.token}")
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if method == "POST":
            request.add_header("Idempotency-Key", uuid.uuid4().hex)
        try:
            with urlopen(request, timeout=timeout_s) as response:
                return _answer(response.status, response.read(), dict(response.headers))
        except HTTPError as error:
            return _answer(error.code, error.read(), dict(error.headers))

    def get(self, path: str, **query: Any) -> Any:
        answer = self.call("GET", path, **query)
        assert answer.status == 200, (path, answer)
        return answer.body

    def post(self, path: str, body: Any = None) -> Any:
        answer = self.call("POST", path, {} if body is None else body)
        assert answer.status in (200, 201, 202), (path, answer)
        return answer.body

    def submit(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self.post(f"/tenants/{self.tenant}/jobs", spec))

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.get(f"/jobs/{job_id}"))

    def wait_state(self, job_id: str, *states: str, within_s: float = 60) -> dict[str, Any]:
        """Wait until the job is in one of the states; fails at once if it ended in another one."""
        final = {"COMPLETED", "FAILED", "CANCELED"} - set(states)

        def look() -> dict[str, Any] | None:
            with contextlib.suppress(URLError, ConnectionError, TimeoutError, AssertionError):
                job = self.job(job_id)
                if job["state"] in final:
                    raise UnexpectedEnd(self.story(job_id))
                return job if job["state"] in states else None
            return None

        return wait_for(look, within_s=within_s, what=f"{job_id} in {states}") or {}

    def wait_step(self, job_id: str, step: int, *, within_s: float = 120) -> None:
        """Wait until the job has reported this step; what went wrong otherwise is in the error."""

        def look() -> bool:
            job = self.job(job_id)
            if (job["progress"]["step"] or 0) >= step:
                return True
            if job["state"] in {"COMPLETED", "FAILED", "CANCELED"}:
                raise UnexpectedEnd(self.story(job_id))
            return False

        try:
            wait_for(look, within_s=within_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: step {step}\n{self.story(job_id)}") from None

    def story(self, job_id: str, lines: int = 30) -> str:
        """What happened to a job, for the error of a test: its events and the end of each attempt's log."""
        job = self.job(job_id)
        events = self.get(f"/jobs/{job_id}/events", page_size=100)["items"]
        said = [f"{job_id} {job['state']} {job['reason']}"]
        said += [f"{event['at']} {event['message']}" for event in events]
        for attempt in range(1, job["attempt"] + 1):
            answer = self.call("GET", f"/jobs/{job_id}/logs/raw", learner=0, attempt=attempt, timeout_s=120)
            log = answer.body.decode(errors="replace") if isinstance(answer.body, bytes) else str(answer.body)
            said += [f"log of attempt {attempt}:", *log.splitlines()[-lines:]]
        return "\n".join(said)

    def raw_log(self, job_id: str, *, attempt: int, learner: int = 0) -> bytes:
        answer = self.call("GET", f"/jobs/{job_id}/logs/raw", learner=learner, attempt=attempt, timeout_s=120)
        assert answer.status == 200, answer
        return answer.body if isinstance(answer.body, bytes) else str(answer.body).encode()


class UnexpectedEnd(Exception):
    """The job ended in another state than the one awaited."""


def _answer(status: int, body: bytes, headers: Mapping[str, str]) -> Answer:
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    return Answer(status, json.loads(body) if "json" in kind and body else body, headers)


class Platform:
    """One `manage.py up`. Use as a context manager; the log is in <data>/up.log."""

    def __init__(
        self,
        data: Path,
        *,
        nodes: str = "node-a:cpu:4,node-b:cpu:4",
        workers: int = 2,
        demo: bool = False,
        **env: str,
    ) -> None:
        """demo: let the first start submit its example job, which also builds the runtime sklearn."""
        self.data, self.nodes, self.workers, self.env = data, nodes, workers, env
        self.demo = demo
        self.meeting = data.parent / f"{data.name}-programs"
        """A folder that programs and tests share; what else is outside their own folders no program reaches."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.users: dict[str, dict[str, Any]] = {}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.data / "up.log"

    def environment(self) -> dict[str, str]:
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("LUTHIER_", "DJANGO_"))
        }
        for key in ("DATABASE_URL", "REDIS_URL", "SECRET_KEY"):
            kept.pop(key, None)
        own = {
            "LUTHIER_DATA": str(self.data),
            "LUTHIER_PUBLIC_URL": self.url,
            "LUTHIER_PROGRAM_WRITES": str(self.meeting),
            "LUTHIER_TENANTS_TRUST_EACH_OTHER": "yes",
        }
        return kept | own | self.env

    def start(self, *, within_s: float = 120) -> Platform:
        """Start, wait until everything is ready, and learn the demo users' passwords and tokens."""
        for folder in (self.data, self.meeting):
            folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "manage.py", "up", "--data", str(self.data), "--port", str(self.port)]
        command += ["--workers", str(self.workers), "--nodes", self.nodes]
        command += [] if self.demo else ["--no-demo"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_for(self.is_ready, within_s=within_s, what=f"{self.url}/readyz; see {self.log}")
        if not self.users:
            self.users = json.loads(self.manage("demo", "--json"))["users"]
        return self

    def is_ready(self) -> bool:
        """Whether it is ready by checks that began after this call: an answer that another reader got within the last
        second is shared, so one that is older than this call is asked for again."""
        assert self.process is not None
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(
                    f"up ended with {self.process.returncode}:\n{self.log.read_text()[-4000:]}"
                )
            try:
                with urlopen(f"{self.url}/readyz", timeout=5) as response:
                    if json.load(response)["checked_at"] >= now:
                        return True
            except (URLError, OSError):  # a 503 is one of them
                return False
            time.sleep(0.1)

    def manage(self, *arguments: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.environment() | env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def client(self, name: str = "alice") -> Client:
        user = self.users[name]
        return Client(self.url, user["token"], user["tenant"] or "")

    def pids(self) -> dict[str, int]:
        """Process ids by role (web, postgres, valkey, nodes, worker-1 …), as the supervisor wrote them."""
        return dict(json.loads((self.data / "run" / "children.json").read_text()))

    def redis_url(self) -> str:
        """Where this platform's Valkey listens."""
        return layout(self.data).redis_url

    def kill(self, role: str, sig: signal.Signals = signal.SIGKILL, *, within_s: float = 60) -> int:
        """Signal the process that has this role now; one that has just died is awaited again."""

        def hit() -> int | None:
            pid = self.pids().get(role)
            with contextlib.suppress(ProcessLookupError):
                if pid is not None:
                    os.kill(pid, sig)
                    return pid
            return None

        return wait_for(hit, within_s=within_s, what=f"a {role} to be killed") or 0

    def stop(self, *, within_s: float = 60) -> None:
        """Ctrl-C, and wait for the end."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            raise

    def __enter__(self) -> Platform:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextlib.contextmanager
def running(data: Path, **options: Any) -> Iterator[Platform]:
    """A started platform that is stopped in the end, whatever happens."""
    platform = Platform(data, **options)
    try:
        yield platform.start()
    finally:
        platform.stop()
