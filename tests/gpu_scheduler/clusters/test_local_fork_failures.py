"""What goes wrong with one forked process, or with the server itself, leaves the rest to go on."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gpu_scheduler.clusters.local import environment, fork_server, processes
from gpu_scheduler.clusters.local.fork_server import SHOWN_CHARS, ForkServer
from gpu_scheduler.clusters.local.processes import MARK, Process
from learner_agent import fork_server as learner_agent_fork_server
from tests.gpu_scheduler.clusters.node_daemon import PROJECT, wait_for

AGENT = [sys.executable, "-m", "learner_agent", "fork", "shipper"]
HANGS = """if True:
    import os, signal, socket
    with open("pid", "w") as file:
        file.write(str(os.getpid()))
    socket.socket(fileno=0).send(b"ready")
    signal.pause()
"""


@pytest.fixture
def subreaper() -> Iterator[None]:
    processes.become_subreaper()
    yield
    processes._adopts = False
    ctypes.CDLL(None).prctl(processes._PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def fork(server: ForkServer, folder: Path, *, output: Path | None = None) -> Process | None:
    return server.start(
        ["shipper"],
        version="1",
        env={MARK: "mark-of-a-test", "TRAINING_ID": "x"},
        cwd=folder,
        output=output or folder / "log",
        boot=processes.boot_id(),
        now=time.monotonic(),
    )


def has_asked(server: ForkServer) -> bool:
    """The server is ready, and the last start asked it."""
    return server._is_ready


def test_what_is_wrong_with_one_process_leaves_the_server_to_the_others(
    subreaper: None, tmp_path: Path
) -> None:
    server = ForkServer(AGENT, env=environment.of_fork_server(PROJECT), cwd=PROJECT)
    try:
        without_folder = partial(fork, server, tmp_path / "missing", output=tmp_path / "log")
        wait_for(lambda: without_folder() is None and has_asked(server))
        assert without_folder() is None, "it starts the plain way, which says what is wrong"
        with pytest.raises(FileNotFoundError):
            fork(server, tmp_path, output=tmp_path / "missing" / "log")
        forked = fork(server, tmp_path)
        assert forked is not None
        wait_for(lambda: not forked.is_alive())
        assert forked.exit_code == os.EX_CONFIG, "it ran: the environment of a shipper is missing"
    finally:
        server.close()


def test_a_server_that_neither_answers_nor_ends_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = ForkServer([sys.executable, "-c", HANGS], env=dict(os.environ), cwd=tmp_path)
    monkeypatch.setattr(fork_server, "ANSWER_S", 0.1)
    monkeypatch.setattr(fork_server, "END_S", 0.1)
    has_begun = (tmp_path / "pid").exists
    with monkeypatch.context() as immortal:
        immortal.setattr(Process, "signal", lambda *_: None)
        wait_for(lambda: fork(server, tmp_path) is None and has_begun() and server._process is None)
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: server.reap(time.monotonic()) or not Path(f"/proc/{pid}").exists())


def test_a_process_that_is_awaited_no_more_does_not_begin(tmp_path: Path) -> None:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {**environment.of_fork_server(PROJECT), MARK: "-" * SHOWN_CHARS}
    with its:
        server = subprocess.Popen(AGENT, env=env, cwd=PROJECT, stdin=its)
    printed, output = os.pipe()
    request, asked = os.pipe()
    assert ours.recv(16)
    socket.send_fds(ours, [b"."], [output, request])
    for end in (output, request):
        os.close(end)
    wait_for(Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text)
    ours.close()  # while the server's child reads the request
    with open(asked, "w") as target:
        json.dump({"arguments": ["shipper"], "env": {MARK: "mark-of-a-test"}, "cwd": str(tmp_path)}, target)
    with open(printed, "rb") as source:
        assert source.read() == b"", (
            "it did not run"
        )  # read until every process that can print there has ended
    assert server.wait() == 0 or True


@pytest.mark.parametrize(
    "named",
    [{}, {"LANG": "C"}, {"LANG": "C.UTF-8"}, {"LC_CTYPE": "POSIX"}, {"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}],
)
def test_a_forked_launcher_hands_on_the_locale_that_a_new_interpreter_would(named: dict[str, str]) -> None:
    shown = subprocess.run(
        [sys.executable, "-E", "-s", "-c", "import json, os; print(json.dumps(dict(os.environ)))"],
        env=named,
        capture_output=True,
        check=True,
    )
    assert learner_agent_fork_server._with_locale(named) == json.loads(shown.stdout)


def test_what_shippers_import_late_is_there_before_the_fork() -> None:
    look = "import sys; from learner_agent.shipper.run import LATE, preload; preload(); print({*LATE} - {*sys.modules})"
    shown = subprocess.run(
        [sys.executable, "-c", look], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert shown.stdout == "set()\n"
