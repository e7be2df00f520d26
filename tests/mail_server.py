"""A mail server for tests: speaks enough SMTP to take mails, refuse them, or go wrong in the ways that servers do."""

from __future__ import annotations

import socket
import threading
import time
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Self


class MailServer:
    """Listens on loopback while its block runs. mails: what it took, with the addresses it was given.

    behavior: "take"; "refuse" or "later": no recipient, for good or for now; "silent": accepts connections and says
    nothing; "drip": a byte of its greeting now and then, without end; "hang": takes a mail and never answers; "no tls":
    offers STARTTLS and says nothing after it; "cut": ends the connection in the middle of the first mail.
    """

    def __init__(self, behavior: str = "take") -> None:
        self.behavior = behavior
        self.mails: list[tuple[list[str], EmailMessage]] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in (self._listener, *self._open):
            with_shutdown(each)
        self._thread.join(10)

    def _serve(self) -> None:
        while not self._over.is_set():
            try:
                client, _address = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(client)
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        try:
            self._talk(client)
        except OSError:
            pass  # the other side has ended
        finally:
            client.close()

    def _talk(self, client: socket.socket) -> None:
        if self.behavior == "silent":
            self._over.wait()
            return
        if self.behavior == "drip":
            while not self._over.is_set():
                client.sendall(b"2")
                time.sleep(0.05)
            return
        client.sendall(b"220 test\r\n")
        recipients: list[str] = []
        lines = client.makefile("rb")
        for line in lines:
            verb = line[:4].upper()
            if verb == b"DATA":
                client.sendall(b"354 go on\r\n")
                text = b"".join(iter(lambda: next(lines), b".\r\n"))
                if self.behavior == "hang":
                    self._over.wait()
                    return
                if self.behavior == "cut":
                    self.behavior = "take"
                    with_shutdown(client)
                    return
                mail = message_from_bytes(text, policy=policy.default)
                assert isinstance(mail, EmailMessage)
                self.mails.append((recipients, mail))
                recipients = []
            if verb == b"RCPT":
                if self.behavior in ("refuse", "later"):
                    client.sendall(b"550 no\r\n" if self.behavior == "refuse" else b"450 later\r\n")
                    continue
                recipients.append(line.decode().split("<")[1].split(">")[0])
            if self.behavior == "no tls" and verb in (b"EHLO", b"STAR"):
                client.sendall(b"250-test\r\n250 STARTTLS\r\n" if verb == b"EHLO" else b"220 go on\r\n")
                if verb == b"STAR":
                    self._over.wait()
                    return
                continue
            client.sendall(b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")
            if verb == b"QUIT":
                return


def with_shutdown(each: socket.socket) -> None:
    """End what waits on this socket in another thread as well."""
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    each.close()
