"""The node daemon obeys only those who have its key: a program on the machine may reach its socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_scheduler.clusters.base import ClusterBusy, ClusterError
from gpu_scheduler.clusters.local.client import Address, ping
from tests.gpu_scheduler.clusters.node_daemon import NodeDaemon, running_daemon

OPS: list[dict[str, Any]] = [
    {"op": "ping"},
    {"op": "nodes"},
    {"op": "observe", "names": None},
    {"op": "watch"},
    {"op": "stop", "name": "job-x-1", "grace_s": 0},
    {"op": "remove", "name": "job-x-1", "uids": None},
    {"op": "launch", "gang": {}},
]
WRONG_KEYS: list[dict[str, Any]] = [
    {},
    {"key": ""},
    {"key": "guess"},
    {"key": None},
    {"key": ["a"]},
    {"key": "\ud800"},
]


@pytest.fixture(scope="module")
def daemon() -> Iterator[NodeDaemon]:
    with running_daemon() as found:
        yield found


def answer(daemon: NodeDaemon, request: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rw") as file:
        connection.connect(str(daemon.socket))
        file.write(json.dumps(request) + "\n")
        file.flush()
        return dict(json.loads(file.readline()))


@pytest.mark.parametrize("key", WRONG_KEYS)
@pytest.mark.parametrize("request_", OPS, ids=lambda request: request["op"])
def test_a_request_without_the_key_is_refused(
    daemon: NodeDaemon, request_: dict[str, Any], key: dict[str, Any]
) -> None:
    found = answer(daemon, request_ | key)
    assert (found["ok"], found["error"]) == (False, "wrong_key")


def test_a_driver_with_another_key_says_what_is_wrong(
    daemon: NodeDaemon, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("key") / "node"
    other.write_text("another-key-of-enough-characters-to-be-one")
    with pytest.raises(ClusterError, match="LUTHIER_NODE_KEY"):
        ping(Address(daemon.socket, other))


@pytest.mark.parametrize("content", [None, "", "short"])
def test_a_driver_without_a_key_reports_a_cluster_that_does_not_respond(
    daemon: NodeDaemon, tmp_path_factory: pytest.TempPathFactory, content: str | None
) -> None:
    path = tmp_path_factory.mktemp("key") / "node"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ClusterBusy):
        ping(Address(daemon.socket, path))
