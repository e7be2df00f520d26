"""Build, start, inspect and stop a Kubernetes control plane for tests and debugging."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tools.kube import binaries, fake, nodes
from tools.kube.binaries import ROOT, BuildFailed
from tools.kube.cluster import Cluster, ClusterError, stop

FOLDER = ROOT / ".luthier" / "kube"


def main(arguments: list[str]) -> int:
    given = parser().parse_args(arguments)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that a start that is ended removes what it made
    try:
        return int(given.run(given) or 0)
    except (BuildFailed, ClusterError, nodes.NoSuchNode) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="python -m tools.kube", description=__doc__)
    whole.add_argument("--folder", type=Path, default=FOLDER, help="of the cluster (default: .luthier/kube)")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    programs = commands.add_parser("build", help="build the programs, or find them in the cache")
    programs.add_argument(
        "--tests",
        action="store_true",
        help="also what only tests need: packages, Prometheus, upstream's suite",
    )
    programs.set_defaults(run=build)
    start = commands.add_parser("up", help="start a cluster, which runs until `down`")
    start.add_argument("--nodes", type=int, default=0, help="real nodes (default: 0; needs root)")
    start.add_argument("--fake", type=int, default=2, help="fake nodes (default: 2)")
    start.add_argument("--gpus", type=int, default=8, help="GPUs of each (default: 8)")
    start.add_argument("--netpol", action="store_true", help="enforce NetworkPolicy on the real nodes")
    start.set_defaults(run=up)
    commands.add_parser("down", help="stop the cluster and remove its folder").set_defaults(run=down)
    commands.add_parser("env", help="print the shell's variables for its clients").set_defaults(run=env)
    kill = commands.add_parser("kill-node", help="end a real node at once, as if its power failed")
    kill.add_argument("name", metavar="NAME")
    kill.set_defaults(run=kill_node)
    client = commands.add_parser("kubectl", help="run kubectl as the cluster's administrator")
    client.add_argument("arguments", nargs=argparse.REMAINDER)
    client.set_defaults(run=kubectl)
    return whole


def build(given: argparse.Namespace) -> None:
    print(binaries.build().folder)
    if given.tests:
        nodes.install()
        print(binaries.build_prometheus().folder)
        if not nodes.missing():
            print(binaries.build_suite().folder)


def up(given: argparse.Namespace) -> None:
    built = binaries.build()
    if given.nodes:
        nodes.install()
    if given.netpol and not given.nodes:
        raise ClusterError("--netpol needs real nodes: add --nodes 2.")
    cluster = Cluster(
        given.folder, built, tied=False, real_nodes=given.nodes, gpus=given.gpus, enforced=given.netpol
    )
    cluster.start()
    try:
        acted = (fake.node(f"gpu-{number}", gpus=given.gpus) for number in range(1, given.fake + 1))
        fake.add_nodes(cluster.admin, *acted)
    except BaseException:
        cluster.stop()
        raise
    print(
        f"Kubernetes {binaries.kubernetes_version()} is running with {given.nodes} real and {given.fake} fake nodes."
    )
    print(f"KUBECONFIG={cluster.kubeconfig}")


def down(given: argparse.Namespace) -> None:
    stop(given.folder)


def env(given: argparse.Namespace) -> None:
    for name, value in client_environment(running(given)).items():
        print(f"export {name}={shlex.quote(value)}")


def kubectl(given: argparse.Namespace) -> int:
    cluster = running(given)
    command = [cluster.binaries["kubectl"], *given.arguments]
    return subprocess.call(command, env=os.environ | client_environment(cluster))


def kill_node(given: argparse.Namespace) -> None:
    nodes.kill(running(given).layout, given.name)


def client_environment(cluster: Cluster) -> dict[str, str]:
    """kubectl's cache goes into the cluster's folder, which `down` removes."""
    folder = cluster.layout.folder
    path = f"{cluster.binaries.folder}{os.pathsep}{os.environ.get('PATH', '')}"
    return {"KUBECONFIG": str(cluster.kubeconfig), "KUBECACHEDIR": str(folder / "kubectl"), "PATH": path}


def running(given: argparse.Namespace) -> Cluster:
    cluster = Cluster(given.folder, binaries.build(), tied=False)
    if not cluster.kubeconfig.exists():
        raise ClusterError(
            f"No cluster is running in {given.folder}. Start one with: python -m tools.kube up"
        )
    return cluster


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
