"""One process that loads the code of the preparation, the web server and the workers, and forks each of them.

`manage.py up` starts it (portal.supervisor.loader) and asks for one process at a time: with its command, and three open
files, where it prints its output and its errors, and a connection of its own. The loader forks twice: the new process
loses its parent and becomes the supervisor's child, as one that it starts itself. Then it runs its command as a fresh
interpreter would. The loader ends with its connection. Reasons: docs/adr/0101-one-process-loads-the-code.md.
"""

import gc
import importlib
import itertools
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from portal.supervisor import kernel

FIRST = (
    "portal.management.commands.prepare",
    "django.core.management.commands.migrate",
)
"""What the preparation runs. It is asked for first, because the longest part of a first start is its own."""
REST = (
    "jobs.tasks",
    "celery.bin.celery",
    "celery.bin.worker",
    "celery.apps.worker",
    "celery.concurrency.thread",
    "celery.worker.consumer",
    "kombu.transport.redis",
    "uvicorn.loops.auto",
    "uvicorn.middleware.proxy_headers",
    "portal.connections",
    "portal.asgi_handler",
    "portal.live.routing",
    "portal.live.socket",
    "portal.urls",
)
"""What web server and workers run, but for what does more than define: portal.asgi, portal.web, celery.__main__."""


@dataclass(frozen=True)
class Request:
    """One process to start. connection: it says its pid there, and begins when it is answered."""

    command: list[str]
    on_parent_death: signal.Signals
    output: int
    errors: int
    connection: socket.socket


def main() -> None:
    """Serve the supervisor; in a process that was forked, run its command."""
    path = sys.path[1:]  # Celery adds to it
    command = serve(socket.socket(fileno=sys.stdin.fileno()))
    if command:
        gc.enable()
        run(command, path)


def serve(supervisor: socket.socket) -> list[str] | None:
    """Fork processes until the supervisor hangs up: None. Returns in each of them, too, with its command."""
    gc.disable()  # what is loaded stays: looking for garbage among it takes a tenth of the time
    parent = os.getppid()
    _set_up()
    for modules in itertools.chain((FIRST, REST), itertools.repeat(())):
        for name in modules:
            importlib.import_module(name)
        request = _receive(supervisor)
        if request is None:
            supervisor.detach()
            return None
        _require_one_thread()
        gc.freeze()  # what is shared stays shared: a collection in a forked process does not touch it
        child = os.fork()
        if child == 0:
            _become(request, supervisor, parent)
            return request.command
        request.connection.close()
        os.close(request.output)
        os.close(request.errors)
        os.waitpid(child, 0)
    return None


def run(command: Sequence[str], path: Sequence[str]) -> None:
    """Do what the interpreter does with this command: `PYTHON -m MODULE …` or `PYTHON FILE …`.

    path: where modules are looked for, after the folder of the program.
    """
    _, *arguments = command
    is_module = arguments[0] == "-m"
    sys.path[:] = [str(Path.cwd() if is_module else Path(arguments[0]).resolve().parent), *path]
    if is_module:
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def _set_up() -> None:
    """Read the settings, and load the models and what every process needs of Django."""
    import django

    django.setup(set_prefix=False)


def _receive(supervisor: socket.socket) -> Request | None:
    """The next request; None when the supervisor has hung up."""
    message, files, _, _ = socket.recv_fds(supervisor, 65536, 3)
    if not message:
        return None
    asked = json.loads(message)
    output, errors, connection = files
    return Request(
        command=asked["command"],
        on_parent_death=signal.Signals(asked["on_parent_death"]),
        output=output,
        errors=errors,
        connection=socket.socket(fileno=connection),
    )


def _require_one_thread() -> None:
    """A fork copies the thread that calls it only: locks that others hold would never be released."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        sys.exit(f"{threads} threads run, so no process can be forked")


def _become(request: Request, supervisor: socket.socket, parent: int) -> None:
    """Fork once more, and return only in the new process, which has the supervisor as its parent by then."""
    try:
        forker = os.getpid()
        if os.fork():
            os._exit(os.EX_OK)
        while os.getppid() == forker:
            time.sleep(0.0005)
        kernel.die_with(parent, request.on_parent_death)
        request.connection.send(str(os.getpid()).encode())
        if not request.connection.recv(1):  # it is awaited no more
            os._exit(os.EX_UNAVAILABLE)
        request.connection.close()
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for file, place in ((nothing, supervisor.detach()), (request.output, 1), (request.errors, 2)):
            os.dup2(file, place)
            os.close(file)
        kernel.show_command(request.command)
    except BaseException:
        traceback.print_exc()
        os._exit(os.EX_OSERR)


if __name__ == "__main__":
    main()
