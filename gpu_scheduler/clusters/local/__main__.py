"""``python -m gpu_scheduler.clusters.local --data DIR --socket PATH --key FILE --nodes SPEC``: the node daemon.

Exits 78 for wrong arguments, each on a line of its own, and 75 when another daemon has the data folder.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from gpu_scheduler.clusters.local import environment, gpus, isolation, processes, protocol
from gpu_scheduler.clusters.local.choices import Choices
from gpu_scheduler.clusters.local.context import DaemonContext
from gpu_scheduler.clusters.local.daemon import AlreadyRunning, Daemon, Wakeup, hold_folder
from gpu_scheduler.clusters.local.fork_server import ForkServer, ForkServers
from gpu_scheduler.clusters.local.gangs import Gangs
from gpu_scheduler.clusters.local.gpus import Gpus
from gpu_scheduler.clusters.local.isolation import Mode
from gpu_scheduler.clusters.local.memory_limits import Cgroups
from gpu_scheduler.clusters.local.nodes import EXAMPLE, BadNodes, LocalNode, read_nodes
from gpu_scheduler.clusters.local.packages import Environments
from gpu_scheduler.clusters.local.runtimes import Runtimes

PROJECT = Path(__file__).resolve().parents[3]
SOCKET_PATH_BYTES = 107


def main(arguments: list[str] | None = None) -> int:
    options = _arguments().parse_args(arguments)
    wrong, nodes = _check(options)
    if wrong:
        sys.stderr.write("\n".join(wrong) + "\n")
        return os.EX_CONFIG
    _log_to_stderr()
    data = options.data.resolve()
    try:
        folder = hold_folder(data)
    except AlreadyRunning as error:
        sys.stderr.write(f"{error}\n")
        return os.EX_TEMPFAIL
    wakeup = Wakeup()
    agent = options.agent.resolve()
    isolation.make_cuda_device()
    packages = isolation.package_folders(os.environ, _private(options))
    reads, writes = [*_paths(options.program_reads), *packages], _paths(options.program_writes)
    sandboxing = isolation.probe(
        environment.agent_command(Path(sys.executable), agent), options.sandbox, reads=reads, writes=writes,
        private=[*_private(options), *isolation.home_of_the_user([*reads, *writes])],
    )  # fmt: skip
    if options.sandbox is Mode.REQUIRED and not sandboxing.landlock:
        sys.stderr.write(f"--sandbox: required, but {sandboxing.report().text}\n")
        return os.EX_CONFIG
    logging.getLogger(__name__).info(
        "isolation", extra={"found": sandboxing.report().text, "packages": packages}
    )
    forks = {"env": environment.of_fork_server(agent.parent), "cwd": agent.parent}
    shippers = ForkServer([sys.executable, "-m", agent.name, "fork", "shipper"], **forks)
    launchers = ForkServers(
        lambda python: ForkServer([*environment.agent_command(python, agent), "fork", "launcher"], **forks)
    )
    context = DaemonContext(
        data, agent, sys.executable, processes.boot_id(), Cgroups.find(), sandboxing,
        Gpus(gpus.nvidia() if any(node.devices for node in nodes) else ()), shippers, launchers,
    )  # fmt: skip
    runtimes = Runtimes(data, options.runtimes.resolve(), on_change=wakeup.wake)
    environments = Environments(data, runtimes, on_change=wakeup.wake)
    gangs = Gangs(context, nodes, environments, on_change=wakeup.wake)
    try:
        Daemon(gangs, Choices(environments), options.socket, protocol.read_key(options.key), wakeup).run()
    finally:
        shippers.close()
        launchers.close()
    os.close(folder)
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_scheduler.clusters.local", description="The node daemon of the local cluster."
    )
    parser.add_argument("--data", type=Path, required=True, help="data folder of the installation")
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket to listen on")
    parser.add_argument(
        "--key", type=Path, required=True, help="file of the key that every request must have"
    )
    parser.add_argument("--sandbox", type=Mode, choices=list(Mode), default=Mode.AUTO,
                        help="whether programs are confined to what is theirs")  # fmt: skip
    for which in ("reads", "writes"):
        parser.add_argument(f"--program-{which}", default="", metavar="PATHS",
                            help=f"paths, apart by {os.pathsep}, that every program {which}")  # fmt: skip
    parser.add_argument("--private", type=Path, action="append", default=[], metavar="PATH",
                        help="a path that no program may reach, besides the data folder and the key")  # fmt: skip
    parser.add_argument("--nodes", default="auto", help=f"auto, or name:type:slots, … such as {EXAMPLE}")
    parser.add_argument("--runtimes", type=Path, default=PROJECT / "examples" / "runtimes",
                        help="folder of the runtimes' requirement files")  # fmt: skip
    parser.add_argument("--agent", type=Path, default=PROJECT / "learner_agent",
                        help="directory of the learner agent's package")  # fmt: skip
    return parser


def _check(options: argparse.Namespace) -> tuple[list[str], tuple[LocalNode, ...]]:
    """Everything that is wrong with the arguments, and the nodes they name."""
    wrong: list[str] = []
    nodes: tuple[LocalNode, ...] = ()
    try:
        nodes = read_nodes(options.nodes)
    except BadNodes as error:
        wrong += str(error).split("\n")
    if len(os.fsencode(options.socket)) > SOCKET_PATH_BYTES:
        wrong.append(
            f"--socket: {options.socket} is longer than {SOCKET_PATH_BYTES} bytes; choose a shorter path"
        )
    try:
        protocol.read_key(options.key)
    except (OSError, ValueError) as error:
        wrong.append(f"--key: {options.key}: {error}")
    for which in ("reads", "writes"):
        paths = _paths(getattr(options, f"program_{which}"))
        wrong += isolation.wrong_paths(f"--program-{which}", paths, _private(options))
    if not (options.agent / "__main__.py").is_file():
        wrong.append(
            f"--agent: {options.agent} is not the learner agent's package; run from the project's folder"
        )
    return wrong, nodes


def _private(options: argparse.Namespace) -> list[Path]:
    """What no program may reach but for what it is granted in it by name, as its own folder; none in another one."""
    places = sorted({path.resolve() for path in (options.data, options.key, *options.private)})
    return [path for path in places if not any(other in path.parents for other in places)]


def _paths(text: str) -> list[Path]:
    return [Path(part) for part in text.split(os.pathsep) if part]


class _Line(logging.Formatter):
    """A fixed phrase, then its fields as name=value."""

    _own = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}

    def format(self, record: logging.LogRecord) -> str:
        fields = [f"{name}={value}" for name, value in record.__dict__.items() if name not in self._own]
        return " ".join([super().format(record), *fields])


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


if __name__ == "__main__":
    sys.exit(main())
