"""An S3-compatible store for tests: versitygw over a folder, on a loopback port."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from tools.kube import processes
from tools.kube.binaries import Binaries
from tools.kube.cluster import ClusterError

KEY, SECRET, BUCKET = "luthier", "only-for-tests", "blobs"
READY_S = 30.0


class S3Server:
    """One bucket. stop and start keep the port and what is stored."""

    def __init__(self, folder: Path, binaries: Binaries, address: str = "127.0.0.1") -> None:
        self._folder = folder
        self._address = address
        self._program = binaries["versitygw"]
        with processes.PortReservation(1, address) as reserved:
            self.port = reserved.ports[0]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What a client of it reads."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self._address}:{self.port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    @property
    def place(self) -> str:
        return f"s3://{BUCKET}/luthier"

    def start(self) -> None:
        """A folder in its root is a bucket."""
        root, log = self._folder / "root", self._folder / "versitygw.log"
        (root / BUCKET).mkdir(parents=True, exist_ok=True)
        options = ["--access", KEY, "--secret", SECRET, "--port", f"{self._address}:{self.port}", "--quiet"]
        command = [self._program, *options, "posix", str(root)]
        self._process = processes.spawn(command, log, self._folder, tied=True)
        deadline = time.monotonic() + READY_S
        while not processes.listens(self.port, self._address):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ClusterError(f"The S3 server did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
