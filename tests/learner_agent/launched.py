"""A launcher without a shipper: the test plays its part."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from learner_agent.halting import IMPORT_S
from learner_agent.log_segments import LogReader, Piece
from learner_agent.spool import Spool
from tests.learner_agent.harness import ROOT, TIMEOUT_S, until


class Launched:
    """One launcher over a spool of its own, with no shipper: the test plays its part."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.spool = Spool(home / "state")
        self.spool.root.mkdir(parents=True)
        self.env = {
            "PATH": os.environ["PATH"],
            "TRAINING_ID": "3f9k2m7qx4ta",
            "JOB_STATE_DIR": str(self.spool.root),
            "MODEL_DIR": str(home / "code"),
            "LUTHIER_GRACE_S": "1",
        }
        (home / "code").mkdir()
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self, command: str | list[str], *, ready: bool = True, program: str | None = None, **env: str
    ) -> None:
        if program is not None:
            (self.home / "code" / "train.py").write_text(program)
        argv = [sys.executable, str(ROOT / "learner_agent"), "launcher"]
        settings = self.env | env
        if isinstance(command, str):
            settings["TRAINING_COMMAND"] = command
        else:
            argv += ["--", *command]
        self.process = subprocess.Popen(argv, env=settings)
        if ready:
            self.make_ready()

    def make_ready(self, **what: Any) -> None:
        self.spool.write("ready", {"resume_from": None} | what)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(TIMEOUT_S)

    def halt(self, intent: str = "HALT", grace_s: float = 1, gen: int = 2) -> None:
        self.spool.write("halt", {"intent": intent, "gen": gen, "grace_s": grace_s})

    def log(self) -> bytes:
        reader, off, out = LogReader(self.spool), 0, b""
        while isinstance(found := reader.read(off), Piece):
            out += found.data
            off += len(found.data)
        return out

    def grows_old(self) -> None:
        """Wait until the program has had its time to import training, so that it is known whether it did."""
        time.sleep(IMPORT_S)

    def runs_with(self, changes: str, command: str) -> None:
        """Start the launcher as these lines leave it."""
        env = self.env | {"TRAINING_COMMAND": command, "PYTHONPATH": str(ROOT)}
        program = f"import sys\nfrom learner_agent import launcher\n{changes}\nsys.exit(launcher.main([]))\n"
        self.process = subprocess.Popen([sys.executable, "-c", program], env=env)
        self.make_ready()

    def says(self, text: bytes) -> None:
        until(lambda: text in self.log(), f"the program prints {text!r}")

    @property
    def ending(self) -> dict[str, Any]:
        ending = self.spool.read("exit")
        assert ending is not None
        return ending


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
