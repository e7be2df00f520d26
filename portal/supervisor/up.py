"""`manage.py up`: the whole platform on this machine, in one command."""

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from portal.settings.embedded import layout
from portal.settings.env import OWNER_URL, Environment, read_environment, refuse_at_start, warnings
from portal.supervisor.errors import CannotStart
from portal.supervisor.folders import refuse_sources
from portal.supervisor.lock import DataLock
from portal.supervisor.plan import Options, StartPlan, start_plan
from portal.supervisor.report import Report
from portal.supervisor.supervisor import Supervisor

DEFAULT_PORT = 8000
DESCRIPTION = (
    "Start and watch the whole platform on this machine: database, broker, nodes, web server, workers."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Shared by the quick way through manage.py and Django's list of commands."""
    parser.add_argument("--data", metavar="DIR", help="where all data is kept (default: .luthier)")
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="TCP port on loopback; 0 picks a free one"
    )
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="Celery workers (default: 2)")
    parser.add_argument(
        "--no-demo",
        action="store_true",
        help="do not create the demo and its first job in an empty database;"
        " none is created if LUTHIER_PUBLIC_URL is not an address of this machine",
    )
    parser.add_argument("--nodes", metavar="SPEC", help="name:type:slots,… of the local cluster, or auto")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="manage.py up", description=DESCRIPTION)
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def run(arguments: argparse.Namespace) -> int:
    """Returns the exit code: 0 after an orderly stop, 78 for bad settings or folders, 1 if a part could not start."""
    options = {}
    if arguments.nodes:
        os.environ["LOCAL_NODES"], options["LOCAL_NODES"] = arguments.nodes, "--nodes"
    if arguments.data:
        os.environ["LUTHIER_DATA"] = str(Path(arguments.data).expanduser().resolve())
        options["LUTHIER_DATA"] = "--data"
    environment = read_environment(options, wrong_options(arguments))
    refuse_at_start(environment)
    report = Report()
    try:
        where = layout(environment.luthier_data, environment.luthier_node_dir)
        refuse_sources(where)
        lock = DataLock(where.lock)
        lock.take()
        port = free_port(arguments.port)
        plan = _plan(arguments, environment, port)
        lock.describe(f"process {os.getpid()}, {plan.url}")
        report.say(f"Starting Luthier in {plan.layout.data}")
        for warning in warnings(environment, os.environ):
            report.say(f"Warning: {warning}")
        os.environ.pop(OWNER_URL, None)  # the preparation has it of the plan, and nothing else needs it
        asyncio.run(Supervisor(plan, report).run())
    except CannotStart as error:
        sys.stderr.write(f"\n{error}\n")
        return error.exit_code
    return 0


def wrong_options(arguments: argparse.Namespace) -> list[str]:
    """What is wrong with the options that no variable covers, one line per problem."""
    problems = []
    if arguments.data == "":  # an unset variable of a shell: taken as a path it would be the current folder
        problems.append("--data: is empty; name a folder, or leave the option out for .luthier")
    if not 0 <= arguments.port <= 65535:
        problems.append(f"--port: must be 0 to 65535, is {arguments.port}")
    if not 1 <= arguments.workers <= 64:
        problems.append(f"--workers: must be 1 to 64, is {arguments.workers}")
    return problems


def free_port(asked: int) -> int:
    """The port to listen on. Raises CannotStart when the port is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", asked))
        except OSError as error:
            raise CannotStart(
                f"Port {asked} on 127.0.0.1 cannot be used: {error.strerror}. Choose another with --port, "
                "or --port 0 for any free one."
            ) from error
        return int(probe.getsockname()[1])


def _plan(arguments: argparse.Namespace, environment: Environment, port: int) -> StartPlan:
    options = Options(
        data=environment.luthier_data,
        workers=arguments.workers,
        nodes=environment.local_nodes,
        demo=not arguments.no_demo,
    )
    return start_plan(options, environment, port=port)
