"""Processes that start by a fork of one that has imported everything, instead of by a fresh interpreter each.

The node daemon holds the other end of the connection, on standard input, and asks for one process at a time with a
byte and two open files: where it prints, and its arguments, environment and working folder as JSON. The server reads
none of that: it forks, and its child does, so that nothing of one job is ever in the memory from which another one
starts. The child forks once more and ends: the new process has lost its parent and becomes the node daemon's child, as
one that the daemon starts itself. It ends with its connection, and after some time without work.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import select
import socket
import sys
from contextlib import suppress
from typing import Dict, List, Mapping, NoReturn, Optional

IDLE_S = 600.0
SHOWN = ("LUTHIER_PROCESS_MARK", "TRAINING_ID")
"""What /proc shows of the environment of a forked process, by which it is found. The server's own environment has the
first one, with a value that is long enough for both."""
READY, DONE = b"ready", b"done"


def serve() -> Optional[List[str]]:
    """Fork processes until the node daemon hangs up: None. In each forked process its arguments."""
    connection = socket.socket(fileno=sys.stdin.fileno())
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    gc.collect()
    gc.freeze()  # what is shared stays shared: a collection in a child does not touch it
    connection.send(READY)
    while True:
        events = waiting.poll(IDLE_S * 1000)
        if not events or events[0][1] != select.POLLIN:
            connection.detach()
            return None
        child = os.fork()
        if child == 0:
            return _take_over(connection)
        os.waitpid(child, 0)
        with suppress(OSError):  # the next look shows that the daemon has hung up
            connection.send(DONE)


def _take_over(connection: socket.socket) -> List[str]:
    """Fork the process that was asked for, and return in it only: its arguments."""
    try:
        _, (output, request), _, _ = socket.recv_fds(connection, 1, 2)
        with open(request, "rb") as source:
            asked = json.load(source)
        os.chdir(asked["cwd"])
        _show(asked["env"])
        child = os.fork()
        if child:
            connection.send(json.dumps({"pid": child}).encode())
            os._exit(os.EX_OK)
    except BaseException as error:
        with suppress(OSError):  # the daemon may have hung up
            connection.send(json.dumps({"error": repr(error)[:300]}).encode())
        os._exit(os.EX_OSERR)
    if _is_closed(connection):  # it is awaited no more; what exists before that is killed by its mark
        os._exit(os.EX_OSERR)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for handle, place in ((nothing, connection.detach()), (output, 1), (output, 2)):
        os.dup2(handle, place)
    os.close(nothing)
    os.close(output)
    os.environ.clear()
    os.environ.update(_with_locale(asked["env"]))
    return list(asked["arguments"])


def end(code: int) -> NoReturn:
    """End a forked process without taking down the interpreter: that would copy all memory that it shares."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _with_locale(env: Mapping[str, str]) -> Dict[str, str]:
    """The environment as Python leaves it when it starts: where no locale is named, its own processes have UTF-8."""
    named = env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG") or "C"
    is_coerced = not env.get("LC_ALL") and named in ("C", "POSIX")
    return {**env, "LC_CTYPE": "C.UTF-8"} if is_coerced else dict(env)


def _is_closed(connection: socket.socket) -> bool:
    hangup = select.poll()
    hangup.register(connection, 0)
    return bool(hangup.poll(0))


def _show(env: Mapping[str, str]) -> None:
    """Write SHOWN over the environment that the server was started with: it is what /proc shows. Raises ValueError."""
    with open("/proc/self/environ", "rb") as block, open("/proc/self/stat") as row:
        variables = block.read()
        start = int(row.read().rpartition(")")[2].split()[47])  # env_start, see proc(5)
    place = variables.index(f"{SHOWN[0]}=".encode())
    room = variables.index(b"\0", place) - place
    shown = b"\0".join(f"{name}={env[name]}".encode() for name in SHOWN if name in env)
    if len(shown) > room:
        raise ValueError("no room for the mark")
    ctypes.memmove(start + place, shown.ljust(room, b"\0"), room)
