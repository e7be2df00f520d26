"""Connect the learners: rank 0 listens at MASTER_ADDR:MASTER_PORT, all others connect. Plain sockets."""

from __future__ import annotations

import os
import socket
import struct
import time
from dataclasses import dataclass, field

import numpy as np

CONNECT_S = 300.0
STEP_S = 120.0
HEADER = struct.Struct("!QB")  # how many numbers follow, whether a halt was requested


class PeerLost(Exception):
    """A learner of the gang did not connect, or its connection was lost."""


@dataclass
class Gang:
    """peers: on rank 0 one socket for each other rank, in the order of ranks; on other ranks one to rank 0."""

    rank: int
    size: int
    peers: list[socket.socket] = field(default_factory=list)

    @classmethod
    def connect(cls, rank: int, size: int) -> Gang:
        """Wait until all learners are connected. Raises PeerLost after CONNECT_S."""
        if size == 1:
            return cls(0, 1)
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        try:
            peers = _listen(address, size) if rank == 0 else [_connect(address, rank)]
        except OSError as error:
            raise PeerLost(f"the learners did not connect at {address[0]}:{address[1]}: {error}") from error
        return cls(rank, size, peers)

    def sum(self, numbers: np.ndarray, halt: bool) -> tuple[np.ndarray, bool]:
        """Return the sum over all learners, the same bits on each, and whether a halt was requested of any of them."""
        if self.rank:
            _send(self.peers[0], numbers, halt)
            return _receive(self.peers[0])
        total, any_halt = numbers.copy(), halt
        for peer in self.peers:
            theirs, their_halt = _receive(peer)
            total += theirs
            any_halt = any_halt or their_halt
        for peer in self.peers:
            _send(peer, total, any_halt)
        return total, any_halt

    def broadcast(self, numbers: np.ndarray) -> np.ndarray:
        """Return rank 0's numbers on every learner."""
        if self.rank:
            return _receive(self.peers[0])[0]
        for peer in self.peers:
            _send(peer, numbers, False)
        return numbers

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self.peers:
            peer.close()


def _listen(address: tuple[str, int], size: int) -> list[socket.socket]:
    own = address[0] if address[0].startswith("127.") else ""
    deadline = time.monotonic() + CONNECT_S
    arrived: dict[int, socket.socket] = {}
    with socket.create_server((own, address[1])) as server:
        while len(arrived) < size - 1:
            server.settimeout(max(0.1, deadline - time.monotonic()))
            peer, _ = server.accept()
            _prepare(peer)
            (rank,) = struct.unpack("!I", _exactly(peer, 4))
            if 0 < rank < size and rank not in arrived:
                arrived[rank] = peer
            else:
                peer.close()  # not a learner of this gang
    return [arrived[rank] for rank in sorted(arrived)]


def _connect(address: tuple[str, int], rank: int) -> socket.socket:
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            peer = socket.create_connection(address, timeout=5)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    _prepare(peer)
    peer.sendall(struct.pack("!I", rank))
    return peer


def _prepare(peer: socket.socket) -> None:
    peer.settimeout(STEP_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _send(peer: socket.socket, numbers: np.ndarray, halt: bool) -> None:
    try:
        peer.sendall(HEADER.pack(numbers.size, halt) + numbers.astype("<f8").tobytes())
    except OSError as error:
        raise PeerLost(f"lost another learner: {error}") from error


def _receive(peer: socket.socket) -> tuple[np.ndarray, bool]:
    count, halt = HEADER.unpack(_exactly(peer, HEADER.size))
    return np.frombuffer(_exactly(peer, 8 * count), dtype="<f8"), bool(halt)


def _exactly(peer: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        try:
            part = peer.recv(min(count, 1 << 20))
        except ConnectionError as error:  # it ended with data of ours unread
            raise PeerLost(f"lost another learner: {error}") from error
        except OSError as error:
            raise PeerLost(f"no data from another learner: {error}") from error
        if not part:
            raise PeerLost("lost another learner")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
