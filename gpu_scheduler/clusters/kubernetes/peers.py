"""Where learners may connect to, as the variables KUBE_INGEST_PEERS and KUBE_DNS_PEERS write it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any

_LABEL_VALUE = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_PODS = re.compile(
    rf"(?P<namespace>[a-z0-9]([a-z0-9-]{{0,61}}[a-z0-9])?)(/(?P<label>[\w./-]+)=(?P<value>{_LABEL_VALUE}))?"
)
SYNTAX = "ADDRESS/BITS:PORT, NAMESPACE:PORT or NAMESPACE/LABEL=VALUE:PORT, with commas between several"


@dataclass(frozen=True, slots=True)
class Peer:
    """One port of the addresses in a range, or of the pods of a namespace that have the labels."""

    port: int
    cidr: str = ""
    namespace: str = ""
    labels: tuple[tuple[str, str], ...] = ()

    def selector(self) -> dict[str, Any]:
        """As a NetworkPolicy names it."""
        if self.cidr:
            return {"ipBlock": {"cidr": self.cidr}}
        by_name = {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}
        if not self.labels:
            return {"namespaceSelector": by_name}
        return {"namespaceSelector": by_name, "podSelector": {"matchLabels": dict(self.labels)}}


def parse(text: str) -> tuple[Peer, ...]:
    """Raises ValueError that names every entry which is wrong."""
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    wrong = [entry for entry in entries if _parse_one(entry) is None]
    if wrong or not entries:
        raise ValueError(f"{', '.join(map(repr, wrong)) or 'it is empty'}: must be {SYNTAX}")
    return tuple(filter(None, map(_parse_one, entries)))


def _parse_one(entry: str) -> Peer | None:
    where, _, number = entry.rpartition(":")
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 2**16):
        return None
    if found := _PODS.fullmatch(where):
        labels = ((found["label"], found["value"]),) if found["label"] else ()
        return Peer(int(number), namespace=found["namespace"], labels=labels)
    try:
        network = ipaddress.ip_network(where)
    except ValueError:
        return None
    return Peer(int(number), cidr=str(network)) if "/" in where else None
