"""An S3-compatible store that hangs, or is away, behind a web process with few threads: everything else goes on."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from botocore.config import Config
from django.db import connection

from jobs import blobs
from jobs.blobs import health
from jobs.blobs import s3 as s3_store
from jobs.models import Blob, Checkpoint, Job, ResultFile
from jobs.selectors.snapshot import database_now
from jobs.states import State
from portal import asgi_handler
from tenants.models import Token
from tests import factories
from tests.cluster.proxy import Proxy
from tests.cluster.test_s3 import SAVER, bearer, s3, saved
from tests.learner_agent.conftest import rig, server
from tests.learner_agent.harness import AgentServer, Rig, make_job, until
from tests.portal.api.conftest import Api
from tests.portal.api.test_downloads import large_blob, most_memory
from tools.kube.s3 import S3Server

__all__ = ["rig", "s3", "server"]

pytestmark = pytest.mark.cluster

THREADS = 6
CROWD = 2 * THREADS
WEIGHTS, FEW = 10_000_001, 500_001
WAITS = """
import os, pathlib, time
while not pathlib.Path(os.environ["JOB_STATE_DIR"], "go").exists():
    time.sleep(0.05)
"""
HALTS = """
import time
from learner_agent import training
while not training.halt_requested():
    time.sleep(0.05)
"""


@pytest.fixture
def proxy(s3: S3Server, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """In front of the store, for the platform and its learners."""
    between = Proxy(s3.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{between.port}")
    settings.LUTHIER_BLOBS = f"{s3.place}/{tmp_path.name}-behind"
    yield between
    between.flow()
    between.refuse()


def deadline(monkeypatch: pytest.MonkeyPatch, read_s: float) -> None:
    monkeypatch.setattr(s3_store, "CONFIG", s3_store.CONFIG.merge(Config(read_timeout=read_s)))


@pytest.fixture
def few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_handler, "AT_ONCE", THREADS)
    monkeypatch.setattr(asgi_handler, "AT_ONCE_TO_STORE", THREADS // 2)


class Crowd:
    """Requests to a web process that need the store, again and again from as many clients as twice its threads."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url, self._headers = url, headers
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(CROWD)
        self._clients = [self._threads.submit(self._ask) for _ in range(CROWD)]
        self.answers: list[tuple[int, str, str]] = []
        """Status, code and Retry-After."""

    def stop(self) -> None:
        self._over.set()
        for client in self._clients:
            client.result()
        self._threads.shutdown()

    def has_been_refused(self) -> bool:
        return len(self.answers) > CROWD

    def _ask(self) -> None:
        while not self._over.wait(0.5):
            try:
                with urlopen(Request(self._url, headers=self._headers), timeout=60) as response:
                    self.answers.append((response.status, "", ""))
            except HTTPError as error:
                code = json.loads(error.read())["code"]
                self.answers.append((error.code, code, error.headers.get("Retry-After", "")))


def ready(learner: Rig) -> bool:
    return learner.row.phase in ("READY", "PROCESSING")


@pytest.mark.parametrize("outage", ["hang", "refuse"])
def test_a_store_that_does_not_respond_delays_a_checkpoint_and_nothing_else(
    proxy: Proxy,
    few_threads: None,
    server: AgentServer,
    rig: Callable[..., Rig],
    outage: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deadline(monkeypatch, 300)  # no call ends while the store hangs
    saves, halts = (
        make_job({"train.py": WAITS + SAVER.format(size=WEIGHTS)}),
        make_job({"train.py": HALTS}),
    )
    saving, halting = [rig(job) for job in (saves, halts)]
    for learner in (saving, halting):
        learner.launch("python3 train.py")
        learner.ship()
        until(lambda learner=learner: ready(learner), "it has its code")
    getattr(proxy, outage)()
    (saving.state / "go").touch()
    crowd = Crowd(f"{server.url}/agent/v1/code", bearer(saves))
    try:
        until(lambda: Checkpoint.objects.filter(job=saves).exists(), "the checkpoint is offered")
        until(crowd.has_been_refused, "requests that need the store were refused")
        with urlopen(f"{server.url}/login", timeout=60) as page:
            assert page.status == 200
        seen_at = halting.row.last_seen_at
        until(lambda: halting.row.last_seen_at != seen_at, "heartbeats arrive")
        Job.objects.filter(pk=halts.pk).update(intent="HALT", intent_gen=2)
        assert halting.wait() == (0, 0)
        assert halting.row.halted
        assert saved(saves).state == Checkpoint.State.UPLOADING
    finally:
        proxy.flow()
        if outage == "refuse":
            proxy.accept()
        crowd.stop()

    assert saving.wait() == (0, 0)
    assert saved(saves).state == Checkpoint.State.COMMITTED
    assert blobs.is_sound(Blob.objects.get(size=WEIGHTS))
    refused = {answer for answer in crowd.answers if answer[0] != 206}
    assert refused == {(503, "store_unavailable", "2")}
    connection.close()


@pytest.mark.django_db
def test_a_call_ends_although_the_store_hangs_before_or_amid_its_response(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline(monkeypatch, 0.5)
    stored = blobs.put(factories.tenant().pk, BytesIO(b"x" * 8 * blobs.BLOCK))
    with blobs.open(stored) as source:
        assert source.read(1) == b"x"
        proxy.hang()
        with pytest.raises(blobs.StoreSilent):
            source.read()
    with pytest.raises(blobs.StoreSilent):
        blobs.check()
    proxy.flow()
    assert blobs.is_sound(stored)


def test_a_slow_store_takes_the_checkpoint_of_a_halt_and_is_named_as_slow(
    proxy: Proxy, server: AgentServer, rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the job's reason says while its checkpoint waits: see tests/jobs/lifecycle/test_storing.py."""
    monkeypatch.setattr(health, "SLOW_S", 0.5)
    job = make_job({"train.py": HALTS + SAVER.format(size=FEW)})
    learner = rig(job)
    learner.launch("python3 train.py")
    learner.ship()
    until(lambda: learner.row.phase == "PROCESSING", "it runs")
    proxy.slow(0.3)
    found = health.examine({}, database_now())
    assert (found["away"], found["problem"].startswith("a request took ")) == (False, True)
    Job.objects.filter(pk=job.pk).update(intent="HALT", intent_gen=2)
    assert learner.wait() == (0, 0)
    assert learner.row.halted
    assert saved(job).state == Checkpoint.State.COMMITTED
    proxy.flow()
    assert blobs.is_sound(Blob.objects.get(size=FEW))
    connection.close()


@pytest.mark.django_db
def test_a_connection_that_breaks_amid_a_file_is_made_again(proxy: Proxy) -> None:
    content = os.urandom(8 * blobs.BLOCK)
    stored = blobs.put(factories.tenant().pk, BytesIO(content))
    with blobs.open(stored) as source:
        first = source.read(blobs.BLOCK)
        proxy.refuse()
        proxy.accept()
        assert first + source.read() == content


def test_a_client_that_leaves_a_download_frees_its_connection_to_the_store(
    s3: S3Server, server: AgentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = factories.job(state=State.COMPLETED)
    blob = large_blob(job.tenant_id, 64 * blobs.BLOCK)
    ResultFile.objects.create(job=job, tenant=job.tenant, attempt=1, rank=0, path="large.bin", blob=blob)
    _, secret = Token.objects.create(user=job.owner, name="test", expiry=None)
    read, closed = [], threading.Event()
    watch(monkeypatch, "_read", lambda: read.append(1))
    watch(monkeypatch, "_leave", closed.set)

    url = f"{server.url}/api/v1/jobs/{job.pk}/results.zip"
    with urlopen(Request(url, headers={"Authorization": f"Bearer {secret}"}), timeout=60) as download:
        assert len(download.read(blobs.BLOCK)) == blobs.BLOCK
        assert not closed.is_set()
    assert closed.wait(60)
    assert len(read) < 64
    connection.close()


def watch(monkeypatch: pytest.MonkeyPatch, name: str, seen: Callable[[], None]) -> None:
    """Say so before this method of an open object of the store is called."""
    method = getattr(s3_store._Object, name)

    def watched(self: Any, *arguments: Any) -> Any:
        seen()
        return method(self, *arguments)

    monkeypatch.setattr(s3_store._Object, name, watched)


@pytest.mark.django_db
def test_a_download_from_the_store_takes_the_memory_of_a_few_blocks(s3: S3Server) -> None:
    job = factories.job(state=State.COMPLETED)
    blob = large_blob(job.tenant_id, 64 * blobs.BLOCK)
    ResultFile.objects.create(job=job, tenant=job.tenant, attempt=1, rank=0, path="large.bin", blob=blob)
    alice = Api(job.owner)
    for path in ("results.zip", "results/large.bin"):
        assert most_memory(alice.get(f"/jobs/{job.pk}/{path}"), blob.size) < 10 * blobs.BLOCK, path
