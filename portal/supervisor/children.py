"""Children that cannot outlive us: the kernel signals them when the process that started them dies."""

import shutil
import sys
from contextlib import suppress
from signal import SIGINT, Signals

import psutil


def dies_with_parent(command: list[str], signal: Signals = SIGINT) -> list[str]:
    """The command wrapped so that it receives a signal when its parent dies, even by kill -9 (Linux).

    It is asked for after any change of user, because the kernel drops the request at such a change. The program is
    executed in place: no process is added.
    """
    if sys.platform != "linux" or shutil.which("setpriv") is None:
        return command
    wrapper = ["setpriv", "--pdeathsig", signal.name.removeprefix("SIG"), "--"]
    if command[0] in ("unshare", "setpriv"):
        change, program = _split(command)
        return [*change, *wrapper, *program]
    return [*wrapper, *command]


def kill_tree(pid: int) -> None:
    """Kill a process and everything beneath it: a killed node daemon would leave its learners running."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for member in [*process.children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):
                member.kill()


def _split(command: list[str]) -> tuple[list[str], list[str]]:
    """A command that changes the user, parted after its `--`."""
    end = command.index("--") + 1
    return command[:end], command[end:]
