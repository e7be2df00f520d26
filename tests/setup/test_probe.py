"""The supervisor's question to the web server, which may answer in chunks."""

import asyncio
import socket
import threading

from portal.supervisor.readiness import fetch

CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    b'13\r\n{"status": "alive"}\r\n0\r\n\r\n'
)


def test_an_answer_in_chunks_is_read_as_a_whole() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(CHUNKED)

        thread = threading.Thread(target=answer)
        thread.start()
        assert asyncio.run(fetch(server.getsockname()[1], "/healthz")) == (200, {"status": "alive"})
        thread.join()


def test_no_answer_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert asyncio.run(fetch(port, "/healthz")) == (0, {})
