"""The client and its command line against the REST API itself: which job is meant, what is printed, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import IO, Any

import pytest

from jobs.models import ClusterNode, Job, Runtime
from jobs.services.sharing import SharePermission, job_share
from jobs.states import State
from luthier_client import Client, ClientError
from luthier_client.__main__ import main
from luthier_client.client import Reply, over_http
from tests import factories
from tests.jobs.conftest import People, people
from tests.jobs.test_log_lines import store
from tests.portal.api.conftest import Api
from tests.setup.test_runtime_only import ROOT

__all__ = ["people"]


@pytest.fixture
def client(people: People) -> Client:
    return Client(token="as the Api has it", send=through(Api(people.alice)))


def through(api: Api) -> Any:
    def send(
        method: str, path: str, body: bytes, headers: Mapping[str, str], into: IO[bytes] | None = None
    ) -> Reply:
        sent = {name.replace("-", "_"): value for name, value in headers.items() if name != "Authorization"}
        kind = sent.pop("Content_Type", "application/json")
        answer = api(method, path, body, **sent, **{"Content-Type": kind})
        content = b"".join(answer) if answer.streaming else answer.content
        if into is not None and answer.status_code < 300:
            into.write(content)
        return Reply(answer.status_code, content)

    return send


def test_a_job_is_found_by_its_id_by_the_beginning_of_it_and_by_its_name(
    client: Client, people: People
) -> None:
    older = factories.job(pk="3f9k2m7qx4ta", owner=people.alice, name="mnist & co=1")
    newer = factories.job(pk="3f9k2n7qx4ta", owner=people.alice, name="mnist & co=1")
    other = factories.job(pk="4a00000000zz", owner=people.alice, name="mnist & co=1 again")
    assert client.find(older.pk)["id"] == older.pk
    assert client.find("3f9k2m")["id"] == older.pk
    assert client.find("mnist & co=1")["id"] == newer.pk, "the newest job that has the name"
    Job.objects.filter(pk=older.pk).update(created_at=newer.created_at + timedelta(milliseconds=1))
    assert client.find("mnist & co=1")["id"] == older.pk, "ids of one second are in no order"
    assert client.find("4")["id"] == other.pk
    factories.job(pk="4b00000000zz", owner=people.bob, name="mnist & co=1")
    assert client.find("4")["id"] == other.pk, "jobs of other tenants are none"


def test_a_job_that_another_tenant_shares_is_found_by_its_whole_id_only(
    client: Client, people: People
) -> None:
    own = factories.job(owner=people.alice, name="train")
    theirs = factories.job(pk="4b00000000zz", name="train")
    job_share(user=theirs.owner, job_id=theirs.pk, username="alice", permission=SharePermission.OPERATE)
    Job.objects.filter(pk=theirs.pk).update(created_at=own.created_at + timedelta(seconds=1))
    assert "4b00000000zz" in {job["id"] for job in client.items("/jobs")}
    assert client.find("train")["id"] == own.pk
    with pytest.raises(ClientError, match="No job"):
        client.find("4b")
    assert client.find("4b00000000zz")["id"] == theirs.pk


def test_what_a_log_lacks_is_said_and_a_tail_is_as_long_as_was_asked(
    client: Client, people: People, capsys: pytest.CaptureFixture[str]
) -> None:
    job = factories.job(owner=people.alice, name="long", state=State.COMPLETED)
    store(job, [b"x" * 20_000 + b"\n" + b"line\n" * 1_500], sealed=True)
    assert main(["logs", "long", "--tail", "1501"], client) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 1501
    assert "[Line 1 is longer: " in printed.err
    assert main(["logs", "long", "--tail", "0"], client) == 1
    assert "from 1 to 5000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("3f9k2", "may be any of several jobs: 3f9k2n7qx4ta (b), 3f9k2m7qx4ta (a)"),
        ("4a", "may be any of several jobs"),
        ("mnist", "No job has the id or the name mnist"),
        ("3f9k2m7qx4tz", "No job has the id or the name 3f9k2m7qx4tz"),
        ("", "Give a job's id"),
    ],
)
def test_what_may_be_another_job_is_refused(client: Client, people: People, wanted: str, words: str) -> None:
    for pk, name in (("3f9k2m7qx4ta", "a"), ("3f9k2n7qx4ta", "b"), ("4a00000000zz", "c"), ("5", "4a")):
        factories.job(pk=pk.ljust(12, "0"), owner=people.alice, name=name)
    with pytest.raises(ClientError, match=words.replace("(", r"\(").replace(")", r"\)")):
        client.find(wanted)


def test_a_name_that_looks_like_an_id_is_a_name(client: Client, people: People) -> None:
    job = factories.job(owner=people.alice, name="abcdefghjkmn")
    assert client.find("abcdefghjkmn")["id"] == job.pk


def test_a_job_from_its_spec_to_its_deletion_at_the_command_line(
    client: Client, people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> str:
        assert main(arguments, client) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    Runtime.objects.create(slug="sklearn", title="scikit-learn")
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=4)
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps(factories.spec(name="first")))
    assert said("validate", str(spec))
    job = said("submit", str(spec)).strip()
    assert said("show", "first").startswith(f"{job}  first  Queued\n")
    assert job in said("list", "--state", "QUEUED")
    assert job in said("list", "--opportunistic", "false")
    assert job not in said("list", "--opportunistic", "true")
    assert json.loads(said("cancel", job[:8], "--json"))["intent"] == "CANCEL"
    assert "SUBMITTED" in said("events", job)
    factories.job(owner=people.alice, name="second", state=State.COMPLETED)
    assert said("clone", "second").partition("  ")[0] != job
    ended = factories.job(owner=people.alice, name="third", state=State.COMPLETED)
    store(ended, [b"one\ntwo\nthree\n"], sealed=True)
    assert said("logs", "third", "--tail", "2") == "two\nthree\n"
    assert said("logs", "third", "--follow") == "one\ntwo\nthree\n"
    assert said("delete", "third") == ""
    assert main(["show", ended.pk], client) == 1


def test_a_refusal_names_every_field_and_the_command_ends_with_1(
    client: Client, people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("apiVersion: luthier/v1\nnmae: x\n")
    assert main(["submit", str(spec)], client) == 1
    said = capsys.readouterr().err
    assert "nmae: `nmae` is not a field here. Did you mean `name`?" in said
    assert "command: is required" in said
    job = factories.job(owner=people.alice, state=State.COMPLETED)
    assert main(["halt", job.pk], client) == 1
    assert "cannot be halted" in capsys.readouterr().err
    assert main(["show", "no such job"], client) == 1
    assert main(["results", job.pk, "--to", str(tmp_path / "r.zip")], client) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml"], "no partial file is left"


def test_names_and_messages_of_others_cannot_steer_the_terminal(
    client: Client, people: People, capsys: pytest.CaptureFixture[str]
) -> None:
    factories.job(owner=people.alice, name="a\x1b]0;title\x07b")
    assert main(["list"], client) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_without_an_address_or_a_token_the_remedy_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("LUTHIER_URL", "LUTHIER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert main(["list"]) == 1
    assert "LUTHIER_URL is not set" in capsys.readouterr().err
    monkeypatch.setenv("LUTHIER_URL", "http://127.0.0.1:9")
    assert main(["list"]) == 1
    assert "LUTHIER_TOKEN is not set" in capsys.readouterr().err
    monkeypatch.setenv("LUTHIER_TOKEN", "lut_x")
    assert main(["list"]) == 1
    assert "http://127.0.0.1:9/api/v1 does not respond" in capsys.readouterr().err


class Elsewhere(BaseHTTPRequestHandler):
    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(302)
        self.send_header("Location", "/stolen")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def redirecting() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Elsewhere)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_redirect_does_not_carry_the_token_away(redirecting: str) -> None:
    with pytest.raises(ClientError, match="The server answered 302"):
        Client(redirecting, "lut_x").call("GET", "/me")
    assert Elsewhere.asked == ["/api/v1/me"]


def test_an_address_with_a_path_is_refused() -> None:
    for url in ("", "ftp://x", "http://x/api/v1", "x:8000"):
        with pytest.raises(ClientError, match="LUTHIER_URL"):
            over_http(url)


def test_it_needs_the_standard_library_only() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import luthier_client.__main__"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
