"""What a shipper makes of its spool, without a server."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from websockets.asyncio.server import ServerConnection, serve

from learner_agent.settings import shipper_settings
from learner_agent.shipper import inputs
from learner_agent.shipper.connection import Fenced
from learner_agent.shipper.fetch import DAMAGED_TRIES, InputFetch
from learner_agent.shipper.http import PIECE_BYTES, Client, Refused, Unreachable, _as_refusal
from learner_agent.shipper.inputs import CorruptDownload, InputError, Interrupted
from learner_agent.shipper.run import DEATH_S, EXIT_WRONG_VERSION, Shipper
from learner_agent.spool import Spool
from learner_agent.wire import HEARTBEAT_TIMEOUT_S, PROTO, CloseCode, Hello, JobIntent, decode


def shipper_of(tmp_path: Path, url: str = "http://127.0.0.1:9") -> Shipper:
    env = {
        name: str(tmp_path / name.lower()) for name in ("JOB_STATE_DIR", "MODEL_DIR", "DATA_DIR", "LOG_DIR")
    }
    env |= {
        "LUTHIER_INGEST_URL": url,
        "LUTHIER_SECRET": "lsec_x",
        "TRAINING_ID": "3f9k2m7qx4ta",
    }
    return Shipper(shipper_settings(env | {"LUTHIER_ATTEMPT": "1", "LUTHIER_RANK": "0"}))


def test_a_dead_launcher_is_reported_although_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipper = shipper_of(tmp_path)
    shipper.spool.write("ready", {})
    handle = shipper.spool.hold_lock()
    assert handle is not None
    assert shipper._notice_death(None) is None, "it lives"
    os.close(handle)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shipper.spool, "write", full)
    died_at = shipper._notice_death(None)
    assert died_at is not None
    assert shipper._notice_death(died_at - DEATH_S - 1) is None
    assert shipper.exited.is_set()
    (reported, phase) = shipper.connection._events.values()
    assert (reported.what, reported.data["lost"], reported.data["code"]) == ("exit", True, 137)
    assert phase.data == {"phase": "STORING"}


def test_a_launcher_that_dies_while_the_inputs_are_restored_has_started_no_program(tmp_path: Path) -> None:
    """What is in the folders then is half of what was stored: it must not replace the whole."""
    shipper = shipper_of(tmp_path)
    handle = shipper.spool.hold_lock()
    assert handle is not None
    os.close(handle)
    died_at = shipper._notice_death(None)
    assert died_at is not None
    shipper._notice_death(died_at - DEATH_S - 1)
    ending = shipper.spool.read("exit")
    assert ending is not None
    assert (ending["started"], ending["lost"]) == (False, True)


def test_a_setup_command_that_checks_for_a_halt_is_not_the_program(tmp_path: Path) -> None:
    shipper = shipper_of(tmp_path)
    (shipper.spool.root / "phase").write_text("SETUP")
    (shipper.spool.root / "checks_halt").touch()
    shipper._notice()
    (shipper.spool.root / "phase").write_text("PROCESSING")
    (shipper.spool.root / "checks_halt").unlink()
    shipper._notice()
    assert [event.data for event in shipper.connection._events.values()] == [{"phase": "PROCESSING"}]
    (shipper.spool.root / "checks_halt").touch()
    shipper._notice()
    assert shipper.connection._events[2].data == {"phase": "PROCESSING", "checks_halt": True}


def test_a_request_for_a_checkpoint_is_passed_on_once_and_the_program_runs_on(tmp_path: Path) -> None:
    shipper = shipper_of(tmp_path)
    run = JobIntent("RUN", 1, 60)
    shipper._take_intent(run)
    assert not shipper.spool.has("save")
    shipper._take_intent(replace(run, save=2))
    assert shipper.spool.read("save") == {"n": 2}
    (shipper.spool.root / "save").unlink()
    shipper._take_intent(replace(run, save=2))
    assert not shipper.spool.has("save"), "each beat repeats it"
    assert not shipper.spool.has("halt")


def test_what_the_program_asks_and_answers_is_reported_to_each_server_that_welcomes(tmp_path: Path) -> None:
    shipper = shipper_of(tmp_path)
    (shipper.spool.root / "phase").write_text("PROCESSING")
    (shipper.spool.root / "checks_save").touch()
    shipper._take_intent(JobIntent("RUN", 1, 60, save=1))

    def reported() -> list[dict[str, Any]]:
        shipper._notice()
        shipper._notice()
        return [event.data for event in shipper.connection._events.values()][1:]

    asks = {"phase": "PROCESSING", "checks_save": True}
    assert reported() == [asks]
    shipper.spool.write("saved", {"n": 2})
    assert reported() == [asks], "of a request that there is not"
    shipper.spool.write("saved", {"n": 1})
    assert reported() == [asks, asks | {"saved_for": 1}]
    shipper.connection.greetings += 1
    assert reported() == [asks, asks | {"saved_for": 1}, asks | {"saved_for": 1}]


class Fetches:
    """Stands in for the fetch of a job's code: raises each error in turn, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def __call__(self, *_: Any) -> None:
        if self.errors:
            raise self.errors.pop(0)


def fetch(shipper: Shipper, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> str | None:
    async def job(*_: Any, **__: Any) -> dict[str, Any]:
        return {}

    async def at_once(_: float) -> None:
        pass

    monkeypatch.setattr(Client, "json", job)
    monkeypatch.setattr(inputs, "fetch_code", Fetches(*errors))
    monkeypatch.setattr("learner_agent.shipper.fetch.asyncio.sleep", at_once)
    return asyncio.run(shipper.inputs.run())


def test_a_long_outage_does_not_use_up_the_tries_of_a_damaged_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = [Unreachable("restarting")] * 50
    damaged = [CorruptDownload("damaged")] * (DAMAGED_TRIES - 1)
    assert fetch(shipper_of(tmp_path), monkeypatch, *outage, *damaged) is None


class Clock:
    """Time, which a minute passes at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 60.0
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def without_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *errors: Exception, is_up: bool = True
) -> Shipper:
    """A shipper with a link to a store, whose fetch is to meet these errors, a minute apart."""
    shipper = shipper_of(tmp_path)
    shipper.client._links["/agent/v1/code"] = "https://me:pass@store:9000/bucket/code?X-Amz-Signature=hush"
    monkeypatch.setattr(shipper.connection, "is_up", lambda: is_up)
    monkeypatch.setattr("learner_agent.shipper.fetch.time", Clock())
    return shipper


def interrupted(have: int = 0) -> Interrupted:
    return Interrupted("/bucket/code?X-Amz-Signature=hush: timed out", "/agent/v1/code", ("code", have))


def test_a_store_that_a_learner_cannot_reach_is_reported_once_without_the_links_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipper = without_the_store(tmp_path, monkeypatch)
    assert fetch(shipper, monkeypatch, *[interrupted()] * 5) is None
    (reported,) = shipper.connection._events.values()
    assert (reported.what, reported.data["code"]) == ("error", "inputs_unreachable")
    assert "no bytes for 1 min from the store at store:9000 (/bucket/code)" in reported.data["message"]


def test_a_learner_that_reaches_no_input_for_half_an_hour_gives_its_devices_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipper = without_the_store(tmp_path, monkeypatch)
    with pytest.raises(InputError, match=r"30 min from the store at store:9000 \(/bucket/code\)") as gave_up:
        fetch(shipper, monkeypatch, *[interrupted()] * 40)
    assert gave_up.value.code == "not_prepared"


def test_while_the_server_itself_is_away_or_bytes_arrive_a_learner_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = without_the_store(tmp_path, monkeypatch, is_up=False)
    assert fetch(away, monkeypatch, *[Unreachable("/agent/v1/job: refused")] * 90) is None
    slow = without_the_store(tmp_path / "slow", monkeypatch)
    assert fetch(slow, monkeypatch, *[interrupted(have) for have in range(90)]) is None
    assert not {**away.connection._events, **slow.connection._events}


def test_a_server_that_serves_no_inputs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipper = without_the_store(tmp_path, monkeypatch)
    assert fetch(shipper, monkeypatch, *[Unreachable("HTTP 503")] * 5) is None
    (reported,) = shipper.connection._events.values()
    assert "from the server at 127.0.0.1:9 (HTTP 503)" in reported.data["message"]


def test_a_download_that_stops_says_how_far_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [b"x" * PIECE_BYTES]

    async def piece(*_: Any) -> bytes:
        if pieces:
            return pieces.pop()
        raise Unreachable("/bucket/code: timed out")

    monkeypatch.setattr(Client, "piece", piece)
    client, target = Client("http://127.0.0.1:9", "lsec_x"), tmp_path / "code"
    for _ in range(2):
        with pytest.raises(Interrupted) as stopped:
            asyncio.run(inputs.download(client, "/code", target, size=PIECE_BYTES + 1, sha256=""))
        assert stopped.value.place == (str(target), PIECE_BYTES)


def test_a_proxy_of_which_the_server_does_not_know_that_it_has_tls_ends_no_job() -> None:
    def refusal(code: str) -> Exception:
        return _as_refusal(403, io.BytesIO(json.dumps({"code": code, "detail": "no"}).encode()))

    assert isinstance(refusal("https_required"), Unreachable), "until an operator has corrected the settings"
    assert isinstance(refusal("forbidden"), Refused)


def test_a_connection_is_up_from_its_first_message_until_a_heartbeat_is_missed(tmp_path: Path) -> None:
    connection = shipper_of(tmp_path).connection
    assert not connection.is_up()
    connection._received_at = time.monotonic()
    assert connection.is_up()
    connection._received_at -= HEARTBEAT_TIMEOUT_S
    assert not connection.is_up()


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([CorruptDownload("damaged")] * DAMAGED_TRIES, "not_prepared"),
        ([OSError(errno.ENOSPC, "No space left on device")], "not_prepared"),
        ([OSError(errno.ENAMETOOLONG, "File name too long")], "data_error"),
        ([Refused(400, "wrong", "no such job", {})], "data_error"),
        ([Refused(404, "not_found", "no such file", {})] * DAMAGED_TRIES, "not_prepared"),
        ([Refused(422, "checkpoint_invalid", "damaged", {})], "not_prepared"),
        ([Refused(422, "no_valid_checkpoint", "none", {})], "data_error"),
    ],
    ids=["damaged", "full", "name", "wrong", "missing", "checkpoint damaged", "no checkpoint"],
)
def test_only_what_is_wrong_with_the_inputs_themselves_fails_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, errors: list[Exception], code: str
) -> None:
    with pytest.raises(InputError) as refused:
        fetch(shipper_of(tmp_path), monkeypatch, *errors)
    assert refused.value.code == code


def test_a_file_that_is_missing_once_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fetch(shipper_of(tmp_path), monkeypatch, Refused(404, "not_found", "no such file", {})) is None


def test_a_disk_that_is_full_when_all_is_fetched_is_the_nodes_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    shipper = shipper_of(tmp_path)
    monkeypatch.setattr(shipper.spool, "write", full)
    with pytest.raises(InputError) as refused:
        shipper._let_start(None)
    assert refused.value.code == "not_prepared"


def test_a_gangs_program_waits_for_the_other_learners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fetched(_: InputFetch) -> None:
        return None

    async def scenario(shipper: Shipper) -> None:
        monkeypatch.setattr(InputFetch, "run", fetched)
        shipper.spool.write("shipper/job.json", {"learners": 2})
        providing = asyncio.create_task(shipper._provide_inputs())
        while shipper._phase != "READY":
            await asyncio.sleep(0)
        shipper._take_intent(JobIntent("RUN", 1, 60, start=False))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not shipper.spool.has("ready"), "another learner is not ready yet"
        shipper._take_intent(JobIntent("RUN", 1, 60, start=True))
        await asyncio.wait_for(providing, 60)
        assert shipper.spool.has("ready")

    async def begin() -> None:
        await scenario(shipper_of(tmp_path))

    asyncio.run(begin())


def test_a_server_that_does_not_know_the_learner_has_a_quarter_of_an_hour_to_be_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its database was restored from an older copy, say: the program must not be stopped for that at once."""
    connection, now = shipper_of(tmp_path).connection, 1000.0
    monkeypatch.setattr("learner_agent.shipper.connection.time.monotonic", lambda: now)
    for _ in range(100):
        connection._check_end(CloseCode.UNAUTHORIZED, OSError("unknown secret"))
        now += 8
    now += 200
    with pytest.raises(Fenced):
        connection._check_end(CloseCode.UNAUTHORIZED, OSError("unknown secret"))


def test_a_shipper_of_another_version_ends_and_leaves_the_program_alone(tmp_path: Path) -> None:
    """It would never be understood; the program must not pay for an upgrade of the platform."""

    async def refuse(socket: ServerConnection) -> None:
        hello = decode(await socket.recv())
        assert isinstance(hello, Hello)
        assert hello.proto == PROTO
        await socket.close(CloseCode.VERSION, f"proto: this server speaks {hello.proto + 1}.")

    async def scenario() -> int:
        async with serve(refuse, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            shipper = shipper_of(tmp_path, f"http://127.0.0.1:{port}")
            shipper.spool.write("ready", {"resume_from": None})
            async with asyncio.timeout(30):
                return await shipper.run()

    assert asyncio.run(scenario()) == EXIT_WRONG_VERSION
    spool = Spool(tmp_path / "job_state_dir")
    assert not spool.has("halt")
    assert not spool.has("exit")
