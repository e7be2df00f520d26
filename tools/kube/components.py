"""What each program of the control plane is started with. No process and no file is touched here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "127.0.0.1"
SERVICE_RANGE = "10.96.0.0/16"
DNS_SERVICE = "10.96.0.10"
SERVICE_HOSTS = ("10.96.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
PLATFORM = "system:serviceaccount:luthier:luthier"
"""The account that a platform under test runs as, see Cluster.service_account."""
# 16 s would notice a dead node sooner, but evicts the pods of healthy ones where the machine is busy.
NODE_GRACE_S = 40
# An unreachable node's pods are evicted after 5 s instead of 5 minutes: tests wait for it.
EVICT_AFTER_S = 5


@dataclass(frozen=True)
class Ports:
    etcd: int
    etcd_peers: int
    apiserver: int
    controllers: int
    scheduler: int


@dataclass(frozen=True)
class Layout:
    """The files of one cluster, all in one folder. address: where its API server listens and is reached."""

    folder: Path
    address: str = LOOPBACK

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    @property
    def logs(self) -> Path:
        return self.folder / "log"

    @property
    def etcd_config(self) -> Path:
        return self.folder / "etcd.json"

    @property
    def kwok_stages(self) -> Path:
        return self.folder / "kwok-stages.yaml"

    @property
    def audit_policy(self) -> Path:
        return self.folder / "audit-policy.json"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    def kubeconfig(self, user: str) -> Path:
        return self.folder / f"{user}.kubeconfig"

    def log(self, component: str) -> Path:
        return self.logs / f"{component}.log"


def certificates(address: str) -> list[dict[str, object]]:
    """What the cluster's authority signs at the start: servers by host, clients by user and group."""
    local = sorted({LOOPBACK, "localhost", address})
    return [
        certificate("etcd", "etcd", hosts=local),
        certificate("apiserver", "kube-apiserver", hosts=[*local, *SERVICE_HOSTS]),
        certificate("controllers", "system:kube-controller-manager", hosts=local),
        certificate("scheduler", "system:kube-scheduler", hosts=local),
        certificate("kubelets", "kube-apiserver-kubelet-client", "system:masters"),
        certificate("kwok", "kwok"),
        certificate("proxy", "system:kube-proxy"),
        certificate("dns", "coredns"),
        certificate("netpol", "netpol"),
        certificate("admin", "admin", "system:masters"),
    ]


def node_certificates(node: str, address: str) -> list[dict[str, object]]:
    """A kubelet is a client of the API server, and a server for logs and commands."""
    return [
        certificate(node, f"system:node:{node}", "system:nodes"),
        certificate(f"{node}-server", node, hosts=[node, address]),
    ]


def certificate(name: str, user: str, *groups: str, hosts: list[str] | None = None) -> dict[str, object]:
    return {"name": name, "common_name": user, "organizations": groups, "hosts": hosts or []}


def kubeconfig(layout: Layout, user: str, port: int, token: str = "") -> str:
    """In JSON, which is YAML as well. token: of a service account; others have keys, which stay in files of their own,
    where every client finds them."""
    cluster = {
        "server": f"https://{layout.address}:{port}",
        "certificate-authority": str(layout.keys / "ca.crt"),
    }
    keys = {
        "client-certificate": str(layout.keys / f"{user}.crt"),
        "client-key": str(layout.keys / f"{user}.key"),
    }
    if token:
        keys = {"token": token}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": user,
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": user, "user": keys}],
        "contexts": [{"name": user, "context": {"cluster": "test", "user": user}}],
    }
    return json.dumps(content, indent=1)


def etcd_config(layout: Layout, ports: Ports) -> str:
    keys = {
        "cert-file": str(layout.keys / "etcd.crt"),
        "key-file": str(layout.keys / "etcd.key"),
        "trusted-ca-file": str(layout.keys / "ca.crt"),
        "client-cert-auth": True,
    }
    clients = f"https://{LOOPBACK}:{ports.etcd}"
    peers = f"https://{LOOPBACK}:{ports.etcd_peers}"
    content = {
        "name": "test",
        "data-dir": str(layout.folder / "etcd"),
        "unsafe-no-fsync": True,  # the data does not outlive the cluster
        "listen-client-urls": clients,
        "advertise-client-urls": clients,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"test={peers}",
        "client-transport-security": keys,
        "peer-transport-security": keys,
        "socket-options": {"reuse-port": True},
        "log-level": "warn",
    }
    return json.dumps(content, indent=1)


def etcd(layout: Layout) -> list[str]:
    return ["etcd", f"--config-file={layout.etcd_config}"]


def apiserver(layout: Layout, ports: Ports) -> list[str]:
    keys = layout.keys
    return [
        "kube-apiserver",
        *_listen("apiserver", ports.apiserver, layout),
        f"--advertise-address={layout.address}",
        # An Endpoints object may not name a loopback address.
        f"--endpoint-reconciler-type={'none' if layout.address == LOOPBACK else 'lease'}",
        f"--etcd-servers=https://{LOOPBACK}:{ports.etcd}",
        f"--etcd-cafile={keys / 'ca.crt'}",
        f"--etcd-certfile={keys / 'etcd.crt'}",
        f"--etcd-keyfile={keys / 'etcd.key'}",
        f"--client-ca-file={keys / 'ca.crt'}",
        f"--kubelet-certificate-authority={keys / 'ca.crt'}",
        f"--kubelet-client-certificate={keys / 'kubelets.crt'}",
        f"--kubelet-client-key={keys / 'kubelets.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",  # next to the defaults, Pod Security and quota among them
        "--allow-privileged=true",  # Pod Security decides, as on clusters made by kubeadm
        f"--service-account-key-file={keys / 'tokens.pub'}",
        f"--service-account-signing-key-file={keys / 'tokens.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--audit-policy-file={layout.audit_policy}",
        f"--audit-log-path={layout.audit_log}",
        f"--default-not-ready-toleration-seconds={EVICT_AFTER_S}",
        f"--default-unreachable-toleration-seconds={EVICT_AFTER_S}",
    ]


def audit_policy() -> str:
    """What PLATFORM does is recorded, and nothing else."""
    recorded = {"level": "Metadata", "users": [PLATFORM], "omitStages": ["RequestReceived"]}
    rules = [recorded, {"level": "None"}]
    return json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules})


def controllers(layout: Layout, ports: Ports) -> list[str]:
    keys = layout.keys
    return [
        "kube-controller-manager",
        *_listen("controllers", ports.controllers, layout),
        *_client("controllers", layout),
        "--use-service-account-credentials=true",
        f"--root-ca-file={keys / 'ca.crt'}",
        f"--service-account-private-key-file={keys / 'tokens.key'}",
        f"--cluster-signing-cert-file={keys / 'ca.crt'}",
        f"--cluster-signing-key-file={keys / 'ca.key'}",
        "--node-monitor-period=1s",
        f"--node-monitor-grace-period={NODE_GRACE_S}s",
        # With the default rate the first ServiceAccount appears 6 s late.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]


def scheduler(layout: Layout, ports: Ports) -> list[str]:
    return [
        "kube-scheduler",
        *_listen("scheduler", ports.scheduler, layout),
        *_client("scheduler", layout),
        # With the default rate it binds 50 pods per second, with this one as many as it can.
        "--kube-api-qps=2000",
        "--kube-api-burst=4000",
    ]


def kwok(layout: Layout) -> list[str]:
    return [
        "kwok",
        f"--kubeconfig={layout.kubeconfig('kwok')}",
        f"--config={layout.kwok_stages}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--node-lease-duration-seconds=40",
        "--node-port=0",  # else it serves logs and metrics on every address
    ]


def dns(layout: Layout) -> list[str]:
    return ["coredns", f"-conf={layout.folder / 'Corefile'}"]


def corefile(layout: Layout) -> str:
    """The cluster's names only: nothing is forwarded."""
    return f"""cluster.local:53 {{
  bind {layout.address}
  errors
  cache 5
  kubernetes cluster.local {{
    kubeconfig {layout.kubeconfig("dns")}
    ttl 5
  }}
}}
"""


def dns_objects(layout: Layout) -> list[tuple[str, dict[str, object]]]:
    """The usual Service kube-dns, with the program on this machine behind it: (path of the collection, object)."""
    ports = [{"name": f"dns-{each.lower()}", "port": 53, "protocol": each} for each in ("UDP", "TCP")]
    slices = {
        "metadata": {"name": "kube-dns", "labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv4",
        "ports": ports,
        "endpoints": [{"addresses": [layout.address], "conditions": {"ready": True}}],
    }
    service = {"metadata": {"name": "kube-dns"}, "spec": {"clusterIP": DNS_SERVICE, "ports": ports}}
    return [
        ("/api/v1/namespaces/kube-system/services", service),
        ("/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices", slices),
    ]


def _listen(name: str, port: int, layout: Layout) -> list[str]:
    return [
        f"--bind-address={layout.address}",
        f"--secure-port={port}",
        "--permit-port-sharing=true",  # the port is reserved until the program listens
        f"--tls-cert-file={layout.keys / name}.crt",
        f"--tls-private-key-file={layout.keys / name}.key",
    ]


def _client(user: str, layout: Layout) -> list[str]:
    path = layout.kubeconfig(user)
    return [
        f"--kubeconfig={path}",
        f"--authentication-kubeconfig={path}",
        f"--authorization-kubeconfig={path}",
        "--leader-elect=false",
    ]
