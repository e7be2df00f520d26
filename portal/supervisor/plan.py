"""Which processes an installation consists of, read from its options and environment. Pure: starts nothing."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGINT, SIGTERM

from portal.migrations_gate import GATE
from portal.settings import queues, values
from portal.settings.embedded import Layout, layout
from portal.settings.env import BASE_DIR, OWNER_URL, Environment
from portal.settings.private_paths import private_paths
from portal.supervisor import postgres, readiness, valkey
from portal.supervisor.service import Service

WORKER_THREADS = 4
MACHINE_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
"""Runtimes are fetched trusting what this machine trusts: a mirror's certificate may be known here only."""
NODE_STOP_S = 3600 + 30
"""The longest grace that a job may have, and more: the daemon itself ends 10 s after the last one."""
NODE_SILENT_S = 150
"""One that does not answer for so long is stuck, and waits for no job."""


@dataclass(frozen=True)
class Options:
    """The options of `manage.py up`; None = as the environment says."""

    data: Path | None = None
    workers: int = 2
    nodes: str | None = None
    demo: bool = True


@dataclass(frozen=True)
class StartPlan:
    """The processes by stage: the servers first, then the other three together; web and workers wait for the tables.

    They end one stage after the other, in the reverse order of these fields: the web server outlives the learners, so
    that their last checkpoint arrives.
    """

    layout: Layout
    port: int
    url: str
    env: dict[str, str]
    prepare: list[str] = field(default_factory=list)
    prepare_env: dict[str, str] = field(default_factory=dict)
    """What it gets besides and no other process does."""
    servers: list[Service] = field(default_factory=list)
    web: list[Service] = field(default_factory=list)
    nodes: list[Service] = field(default_factory=list)
    workers: list[Service] = field(default_factory=list)


def start_plan(options: Options, environment: Environment, *, port: int) -> StartPlan:
    where = layout(options.data or environment.luthier_data, environment.luthier_node_dir)
    url = environment.luthier_public_url or f"http://127.0.0.1:{port}"
    nodes = options.nodes or environment.local_nodes
    env = {
        "DJANGO_SETTINGS_MODULE": "portal.settings.base",
        "LUTHIER_DATA": str(where.data),
        "LUTHIER_PUBLIC_URL": url,
        "LUTHIER_INGEST_URL": environment.luthier_ingest_url or f"ws://127.0.0.1:{port}",
        "LOCAL_NODES": nodes,
        GATE: str(where.prepared),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(BASE_DIR),
        "MALLOC_ARENA_MAX": "2",  # glibc otherwise keeps a heap per thread: tens of MB for nothing
    }
    if MACHINE_CERTIFICATES.exists():
        env["UV_SYSTEM_CERTS"] = "true"
    return StartPlan(
        layout=where,
        port=port,
        url=url,
        env=env,
        prepare=["prepare"] if options.demo else ["prepare", "--no-demo"],
        prepare_env={OWNER_URL: owner} if (owner := environment.luthier_owner_database_url) else {},
        servers=_servers(where, environment),
        web=[_web(port, env)],
        nodes=(
            [_nodes(where, nodes, env, environment)]
            if values.needs_node_daemon(environment.luthier_cluster)
            else []
        ),
        workers=_workers(options.workers, env),
    )


def _servers(where: Layout, environment: Environment) -> list[Service]:
    """The embedded servers, each unless a URL names another."""
    services = []
    if environment.database_url is None:
        services.append(
            Service(
                name="postgres",
                title="PostgreSQL",
                command=postgres.command(where),
                ready=readiness.postgres_answers(where),
                env={"TZ": "UTC"},
                stop_signal=SIGINT,  # PostgreSQL's "fast" stop: SIGTERM would wait for every client
                on_parent_death=SIGINT,
                stop_s=30,
                reads_settings=False,
            )
        )
    if environment.redis_url is None:
        services.append(
            Service(
                name="valkey",
                title="Valkey",
                command=valkey.command(where),
                ready=readiness.valkey_answers(where),
                reads_settings=False,
            )
        )
    return services


def _web(port: int, env: dict[str, str]) -> Service:
    return Service(
        name="web",
        title="Web server",
        command=[sys.executable, "-m", "portal.web", "--port", str(port)],
        ready=readiness.page_answers(port, "/healthz"),
        env=env,
        loaded=True,
    )


def node_command(where: Layout, nodes: str, environment: Environment) -> list[str]:
    """The local cluster's node daemon; it finds the agent and the runtimes from the project's folder."""
    options = ["--data", str(where.data), "--socket", str(where.node_socket), "--key", str(where.node_key)]
    options += ["--nodes", nodes, "--sandbox", environment.luthier_local_sandbox]
    options += ["--program-reads", environment.luthier_program_reads]
    options += ["--program-writes", environment.luthier_program_writes]
    for path in private_paths(environment, os.environ):
        options += ["--private", str(path)]
    return [sys.executable, "-m", "gpu_scheduler.clusters.local", *options]


def _nodes(where: Layout, nodes: str, env: dict[str, str], environment: Environment) -> Service:
    return Service(
        name="nodes",
        title="Node daemon",
        command=node_command(where, nodes, environment),
        ready=readiness.node_daemon_answers(where),
        env=env,
        stop_signal=SIGTERM,
        stop_s=NODE_STOP_S,
        silent_s=NODE_SILENT_S,
        reads_settings=False,
        stopping_note="Running learners get time for a checkpoint; Ctrl-C again kills them",
    )


def _workers(count: int, env: dict[str, str]) -> list[Service]:
    """So many that bring jobs on, and the one that makes scheduling passes. The first one does its work until it runs:
    a start does not wait for it."""
    workers = [
        _worker(f"worker-{number}", f"Worker {number}", queues.JOBS, WORKER_THREADS, env)
        for number in range(1, count + 1)
    ]
    return [*workers[:1], _worker("scheduler", "Scheduler", queues.PASSES, 1, env), *workers[1:]]


def _worker(name: str, title: str, queue: str, threads: int, env: dict[str, str]) -> Service:
    options = [
        "--pool",
        "threads",
        "--concurrency",
        str(threads),
        "--hostname",
        f"{name}@%h",
        "--queues",
        queue,
    ]
    options += ["--without-mingle", "--without-gossip", "--without-heartbeat", "--loglevel", "INFO"]
    return Service(
        name=name,
        title=title,
        command=[sys.executable, "-m", "celery", "-A", "portal.celery", "--skip-checks", "worker", *options],
        ready=readiness.always,
        env=env,
        loaded=True,
    )
