"""After a real job has used and printed its secrets, an attacker looks for them everywhere the platform keeps or shows
anything: database, broker, files, command lines, environments, REST, pages."""

from __future__ import annotations

import hashlib
import http.cookiejar
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
import redis

from portal.settings.embedded import layout
from tests.platform import Client, Platform, running, wait_for

OF_TENANT, OF_ALICE = "wb-3f1c9a7e55d04-of-the-tenant", "hf-77aa01b2c3d4e5-of-alice"
VALUES = {OF_TENANT.encode(), OF_ALICE.encode()}
PROGRAM = """
import hashlib, os, sys, time
from learner_agent import training

for name in ("WANDB_API_KEY", "HF_TOKEN"):
    value = os.environ[name]
    print(name, "is", value)
    for letter in value:
        sys.stdout.write(letter)
        sys.stdout.flush()
        time.sleep(0.002)
    print("", file=sys.stderr)
    print(name, hashlib.sha256(value.encode()).hexdigest(), flush=True)
training.report(1, loss=0.5)
while not training.halt_requested():
    time.sleep(0.05)
with training.checkpoint(1) as folder:
    (folder / "model").write_text("weights")
"""
SPEC = {
    "apiVersion": "luthier/v1",
    "name": "uses-secrets",
    "framework": "plain",
    "code": {"files": {"train.py": PROGRAM}},
    "command": "python train.py",
    "secrets": {"WANDB_API_KEY": "wandb", "HF_TOKEN": "hf"},
}


@pytest.mark.fault
@pytest.mark.timeout(400)
def test_a_value_is_nowhere_but_in_the_program(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=1) as platform:
        alice, dave = platform.client(), platform.client("dave")
        tenant = alice.tenant
        assert dave.call("PUT", f"/tenants/{tenant}/secrets/wandb", {"value": OF_TENANT}).status == 200
        assert alice.call("PUT", "/me/secrets/hf", {"value": OF_ALICE}).status == 200
        job = alice.submit(SPEC)["id"]
        alice.wait_state(job, "PROCESSING", within_s=200)
        log = _whole_log(alice, job)
        assert [line for line in log if line.startswith(b"WANDB")] == [
            b"WANDB_API_KEY is ***",
            b"WANDB_API_KEY " + hashlib.sha256(OF_TENANT.encode()).hexdigest().encode(),
        ], "the program had the true value, and its log shows none of it"
        assert log.count(b"***") == 2, "also letter by letter"
        assert list(_command_lines()) == []
        assert _readers_by_environment() == {"launcher", "program"}
        _nothing_found(platform, alice, dave, job)
        alice.post(f"/jobs/{job}/halt")
        alice.wait_state(job, "HALTED")
        alice.post(f"/jobs/{job}/resume")
        alice.wait_state(job, "PROCESSING", within_s=100)
        alice.post(f"/jobs/{job}/cancel")
        alice.wait_state(job, "CANCELED")
        _nothing_found(platform, alice, dave, job)
    assert _holding(platform.data.rglob("*")) == []


def _whole_log(client: Client, job: str) -> list[bytes]:
    def look() -> bytes:
        log = client.raw_log(job, attempt=1)
        return log if re.search(rb"HF_TOKEN [0-9a-f]{64}\n", log) else b""

    return wait_for(look, within_s=60, what="the whole log").split(b"\n")


def _nothing_found(platform: Platform, alice: Client, dave: Client, job: str) -> None:
    assert _holding(platform.data.rglob("*")) == []
    assert _in_database(platform) == []
    broker = redis.Redis.from_url(platform.redis_url())
    assert [key for key in broker.scan_iter() if _leaks(broker.dump(key) or b"")] == []
    broker.close()
    for client in (alice, dave):
        for path in _addresses(alice.tenant, job):
            answer = client.call("GET", path)
            assert answer.status == 200, path
            assert not _leaks(repr(answer.body).encode()), path
    for name in ("alice", "dave"):
        for path, page in _pages(platform, name, job):
            assert b"Sign out" in page, path
            assert not _leaks(page), path


def _addresses(tenant: str, job: str) -> list[str]:
    own = ["", "/spec", "/events", "/attempts", "/learners", "/logs", "/logs/raw", "/metrics", "/checkpoints"]
    return ["/me", "/me/secrets", f"/tenants/{tenant}/secrets", *(f"/jobs/{job}{part}" for part in own)]


def _pages(platform: Platform, name: str, job: str) -> Iterator[tuple[str, bytes]]:
    user = platform.users[name]
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    form = browser.open(f"{platform.url}/login").read().decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form)
    assert token
    fields = {"username": name, "password": user["password"], "csrfmiddlewaretoken": token[1]}
    request = urllib.request.Request(f"{platform.url}/login", urllib.parse.urlencode(fields).encode())
    request.add_header("Referer", f"{platform.url}/login")
    browser.open(request).read()
    here = f"/t/{user['tenant']}"
    tabs = ["", "/metrics", "/logs", "/learners", "/events", "/checkpoints", "/spec"]
    paths = ["/me/secrets", f"{here}/secrets", f"{here}/jobs/new?from={job}"]
    for path in [*paths, *(f"{here}/jobs/{job}{tab}" for tab in tabs)]:
        yield path, browser.open(platform.url + path).read()


def _in_database(platform: Platform) -> list[str]:
    """Tables that hold a value in any column."""
    found = []
    with psycopg2.connect(layout(platform.data).database_url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'")
        for (table,) in cursor.fetchall():
            cursor.execute(f"SELECT row_to_json(t)::text FROM {table} t")
            if any(_leaks(row.encode()) for (row,) in cursor):
                found.append(table)
    connection.close()
    return found


def _holding(paths: Iterator[Path]) -> list[Path]:
    """Files that hold a value. What ends meanwhile is no file any more."""
    found = []
    for path in paths:
        try:
            if path.is_file() and not path.is_symlink() and _leaks(path.read_bytes()):
                found.append(path)
        except OSError:
            continue
    return found


def _command_lines() -> Iterator[str]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if _leaks((entry / "cmdline").read_bytes()):
                yield entry.name
        except OSError:
            continue


def _readers_by_environment() -> set[str]:
    """Which kinds of processes have a value in their environment."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if _leaks((entry / "environ").read_bytes()):
                words = (entry / "cmdline").read_bytes()
                kinds = {"launcher": b"\0launcher", "program": b"train.py"}
                found.add(next((kind for kind, mark in kinds.items() if mark in words), words.decode()))
        except OSError:
            continue
    return found


def _leaks(content: bytes) -> bool:
    return any(value in content for value in VALUES)
