"""Whether the sandbox works on this machine: a child enters it and then tries what it must not be able to do."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from typing import Callable, Dict, List

from learner_agent.sandbox import hiding, landlock
from learner_agent.sandbox.entry import Sandbox, SandboxFailed

PASSED, FAILED = 0, 1


def main() -> int:
    """Print {"landlock", "namespaces"} and return 0 if programs can be confined, else say why not and return 1."""
    try:
        found = landlock.abi()
    except OSError as error:
        return _none("this kernel has no Landlock (%s)" % error)
    if found < landlock.ABI_MIN:
        return _none("this kernel has version %d of Landlock; %d is needed" % (found, landlock.ABI_MIN))
    reasons: List[str] = []
    for with_namespaces in (True, False):
        reason = _reason_against(with_namespaces)
        if not reason:
            answer = {"landlock": found, "namespaces": with_namespaces, "without": reasons}
            sys.stdout.write(json.dumps(answer) + "\n")
            return PASSED
        reasons.append(reason)
    return _none("; ".join(reasons))


def _none(reason: str) -> int:
    sys.stderr.write(reason + "\n")
    return FAILED


def _reason_against(with_namespaces: bool) -> str:
    """Why a child is not confined; empty if it is. What the child cannot say counts as a failure."""
    with tempfile.TemporaryDirectory() as outside, tempfile.TemporaryDirectory() as own:
        names = {name: os.path.join(outside, name) for name in ("readable", "readable/private", "forbidden")}
        for path in names.values():
            os.mkdir(path)
            with open(os.path.join(path, "file"), "w") as target:
                target.write("secret")
        asked = {
            "read": [names["readable"]], "write": [own], "own": own, "tmp": None, "namespaces": with_namespaces,
            "private": [names["readable/private"]],
        }  # fmt: skip
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            said = "the check of the sandbox broke off"
            try:
                said = _try_all(json.dumps(asked), own, names["readable"], names["forbidden"])
            except (OSError, SandboxFailed) as error:
                said = str(error)
            finally:
                os.write(write_end, said.encode(errors="replace")[:4000])
                os._exit(0)
        os.close(write_end)
        with open(read_end, "rb") as answer:
            said = answer.read().decode(errors="replace")
        _, status = os.waitpid(child, 0)
        if status != 0 or not said:
            return "the check of the sandbox was terminated (status %d)" % status
        return "" if said == "confined" else said


def _try_all(asked: str, own: str, readable: str, forbidden: str) -> str:
    parent = os.getppid()
    service = socket.socket(socket.AF_UNIX)
    service.bind(os.path.join(forbidden, "socket"))
    service.listen()
    folder = os.open(
        forbidden, os.O_PATH | os.O_DIRECTORY
    )  # its name is hidden by namespaces, and not all is tried
    private = os.open(os.path.join(readable, "private"), os.O_PATH | os.O_DIRECTORY)
    is_hidden = bool(hiding.below(hiding.folders([]), [forbidden]))
    sandbox = Sandbox(asked)
    sandbox.enter_as_launcher()
    sandbox.enter_as_program()
    with open(os.path.join(own, "file"), "w") as target:
        target.write("mine")
    with open(os.path.join(readable, "file")) as granted:
        granted.read()
    attempts: Dict[str, Callable[[], object]] = {
        "read a file outside": lambda: os.close(os.open("file", os.O_RDONLY, dir_fd=folder)),
        "read what is the platform's own": lambda: os.close(os.open("file", os.O_RDONLY, dir_fd=private)),
        "write outside": lambda: os.close(os.open("file", os.O_WRONLY, dir_fd=folder)),
        "list a folder outside": lambda: os.close(os.open(".", os.O_RDONLY, dir_fd=folder)),
        "signal a process outside": lambda: os.kill(parent, 0),
        "read the environment of a process outside": lambda: os.close(
            os.open("/proc/%d/environ" % parent, os.O_RDONLY)
        ),
    }
    if sandbox.namespaces:
        attempts["change the mode of a file outside"] = lambda: os.chmod(
            os.path.join(readable, "file"), 0o600
        )
        if is_hidden:
            attempts["reach a service outside"] = lambda: _connect(os.path.join(forbidden, "socket"))
    for what, attempt in attempts.items():
        try:
            attempt()
        except OSError:
            continue
        return "a confined process can still %s" % what
    return "confined"


def _connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
