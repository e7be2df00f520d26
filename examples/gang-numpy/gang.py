"""The learners' meeting: rank 0 listens at MASTER_ADDR:MASTER_PORT, everybody else connects. Plain sockets."""

from __future__ import annotations

import os
import socket
import struct
import time
from dataclasses import dataclass, field

import numpy as np

MEET_S = 300.0
STEP_S = 120.0
HEADER = struct.Struct("!QB")  # numbers to come, halt wished


class PeerLost(Exception):
    """A learner of the gang did not come, or went away."""


@dataclass
class Gang:
    """rank 0 holds one socket per other rank, in their order; the others one to rank 0."""

    rank: int
    size: int
    peers: list[socket.socket] = field(default_factory=list)

    @classmethod
    def meet(cls, rank: int, size: int) -> Gang:
        """Wait until all learners are connected. Raises PeerLost after MEET_S."""
        if size == 1:
            return cls(0, 1)
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        try:
            peers = _listen(address, size) if rank == 0 else [_connect(address, rank)]
        except OSError as error:
            raise PeerLost(f"the learners did not meet at {address[0]}:{address[1]}: {error}") from error
        return cls(rank, size, peers)

    def add_up(self, numbers: np.ndarray, halt: bool) -> tuple[np.ndarray, bool]:
        """Return the sum over all learners, the same bits for each, and whether any of them was asked to halt."""
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

    def from_first(self, numbers: np.ndarray) -> np.ndarray:
        """Return rank 0's numbers to everybody."""
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
    deadline = time.monotonic() + MEET_S
    arrived: dict[int, socket.socket] = {}
    with socket.create_server((own, address[1])) as door:
        while len(arrived) < size - 1:
            door.settimeout(max(0.1, deadline - time.monotonic()))
            peer, _ = door.accept()
            _prepare(peer)
            (rank,) = struct.unpack("!I", _exactly(peer, 4))
            if 0 < rank < size and rank not in arrived:
                arrived[rank] = peer
            else:
                peer.close()  # no learner of this gang
    return [arrived[rank] for rank in sorted(arrived)]


def _connect(address: tuple[str, int], rank: int) -> socket.socket:
    deadline = time.monotonic() + MEET_S
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
        raise PeerLost(f"another learner went away: {error}") from error


def _receive(peer: socket.socket) -> tuple[np.ndarray, bool]:
    count, halt = HEADER.unpack(_exactly(peer, HEADER.size))
    return np.frombuffer(_exactly(peer, 8 * count), dtype="<f8"), bool(halt)


def _exactly(peer: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        try:
            part = peer.recv(min(count, 1 << 20))
        except OSError as error:
            raise PeerLost(f"another learner went silent: {error}") from error
        if not part:
            raise PeerLost("another learner went away")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
