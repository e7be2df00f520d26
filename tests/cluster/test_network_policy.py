"""The test nodes enforce NetworkPolicy: upstream's own tests say so, not ours."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tools.kube import binaries, images
from tools.kube.cluster import Cluster

LONG = bool(os.environ.get("LUTHIER_LONG"))
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200 if LONG else 300)]
ALL = 45
"""Of upstream's tests of NetworkPolicy: those that need no SCTP, which the kernel of a test machine may lack."""
QUICK = (
    "should support a 'default-deny-ingress' policy",
    "should enforce policy to allow traffic only from a different namespace, based on NamespaceSelector",
    "should enforce policy based on Ports",
    "should deny egress from all pods in a namespace",
    "should enforce except clause while egress access to server in CIDR block",
    "should stop enforcing policies after they are deleted",
)
TOTALS = re.compile(r"(\d+) Passed .* (\d+) Failed")


def test_the_nodes_pass_upstreams_tests_of_network_policy(real_cluster: Cluster, tmp_path: Path) -> None:
    """Six of them every day, all by `make test-long`. Without the enforcer the first fails."""
    suite = binaries.build_suite()
    load_image(real_cluster, suite)
    focus = "Netpol " if LONG else rf"Netpol NetworkPolicy between server and client ({'|'.join(QUICK)}) \["
    command = [
        suite["e2e"],
        f"-kubeconfig={real_cluster.kubeconfig}",
        "-provider=skeleton",
        "-num-nodes=2",
        f"-ginkgo.focus={focus}",
        "-ginkgo.skip=(?i)sctp",
        "-ginkgo.no-color",
    ]
    log = tmp_path / "log"
    with log.open("w") as output:
        subprocess.run(command, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT, check=False)
    text = log.read_text()
    found = TOTALS.search(text)
    assert found, text[-4000:]
    assert found.groups() == (str(ALL if LONG else len(QUICK)), "0"), text[-20000:]


def load_image(cluster: Cluster, suite: binaries.Binaries) -> None:
    """The one image that these tests need, under the name by which they ask for it."""
    asked = subprocess.run([suite["e2e"], "-print-image"], capture_output=True, text=True, check=True)
    archive = cluster.layout.folder / "loaded.tar"
    program = {Path("/agnhost"): Path(suite["agnhost"])}
    images.write(archive, [asked.stdout.strip()], program, {"Entrypoint": ["/agnhost"], "Cmd": ["pause"]})
    for node in cluster.nodes:
        node.load(archive)
    archive.unlink()
