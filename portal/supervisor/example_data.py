"""The examples' data, fetched in the background of a demo's first start: nothing waits for it or depends on it."""

import asyncio
import sys
from pathlib import Path

from portal.settings.env import BASE_DIR
from portal.supervisor.children import dies_with_parent, kill_tree
from portal.supervisor.plan import StartPlan
from portal.supervisor.report import Report


async def fetch_example_data(plan: StartPlan, report: Report) -> None:
    """Put MNIST into the data root of the local cluster and report the result."""
    try:
        problem = await _fetch(plan.layout.data / "datasets")
    except OSError as error:  # no memory for one more process: the platform runs without it
        problem = str(error)
    if problem is None:
        report.say("The MNIST templates' data is in place")
    else:
        report.say(f"The MNIST templates have no data yet: {problem}. docs/examples.md says how to fetch it")


async def _fetch(data_root: Path) -> str | None:
    """The problem in one line; None if there was none. Raises OSError."""
    process = await asyncio.create_subprocess_exec(
        *dies_with_parent([sys.executable, "-m", "examples.data.fetch", "mnist", "--to", str(data_root)]),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=BASE_DIR,
        start_new_session=True,
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            kill_tree(process.pid)
    if process.returncode == 0:
        return None
    return (said.decode(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
