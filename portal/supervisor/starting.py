"""How each process of the platform is started: in a session of its own, and the kernel ends it with the supervisor."""

import asyncio
from collections.abc import Mapping, Sequence
from signal import Signals

from portal.settings.env import BASE_DIR
from portal.supervisor.children import dies_with_parent
from portal.supervisor.loader import Loader
from portal.supervisor.running import Running


async def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    output: int,
    errors: int,
    on_parent_death: Signals,
    loader: Loader | None = None,
) -> Running:
    """By a fork of the loader, if one is given and gives a process; else by exec. Raises OSError.

    It reads nothing and prints to these open files. Ctrl-C at the terminal reaches the supervisor alone, which ends the
    processes in order.
    """
    if loader is not None:
        forked = await loader.fork(
            command, env=env, output=output, errors=errors, on_parent_death=on_parent_death
        )
        if forked is not None:
            return forked
    return await asyncio.create_subprocess_exec(
        *dies_with_parent(list(command), on_parent_death),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        cwd=BASE_DIR,
        env=env,
        start_new_session=True,
    )
