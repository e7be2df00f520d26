"""Children that cannot outlive us: the kernel signals them when the process that started them dies."""

import shutil
import sys


def dies_with_parent(command: list[str], signal_name: str = "INT") -> list[str]:
    """The command wrapped so that it receives a signal when its parent dies, even by kill -9 (Linux).

    It is asked for after any change of user, because the kernel forgets the wish at such a change. The program is
    executed in place: no process is added.
    """
    if sys.platform != "linux" or shutil.which("setpriv") is None:
        return command
    wrapper = ["setpriv", "--pdeathsig", signal_name, "--"]
    if command[0] in ("unshare", "setpriv"):
        change, program = _split(command)
        return [*change, *wrapper, *program]
    return [*wrapper, *command]


def _split(command: list[str]) -> tuple[list[str], list[str]]:
    """A command that changes the user, parted after its `--`."""
    end = command.index("--") + 1
    return command[:end], command[end:]
