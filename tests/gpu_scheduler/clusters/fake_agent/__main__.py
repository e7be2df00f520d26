"""``launcher`` behaves as BEHAVIOR says; ``shipper`` ends when the launcher's ``exit`` file is there.

Behaviors: runs, waits (for its inputs), exits:N, stubborn (its program ignores SIGTERM), dies (killed, leaving a child
behind), eats:MIB.
A file ``fault`` in the learner's directory makes its shipper exit with that number at once.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ["JOB_STATE_DIR"])
IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
EATS = (
    "import sys, time; held = b'x' * (int(sys.argv[1]) * 1048576); print('up', flush=True); time.sleep(600)"
)


def launcher() -> int:
    put("seen.json", {"env": dict(os.environ), "argv": sys.argv, "cwd": str(Path.cwd())})
    word, _, value = os.environ["BEHAVIOR"].partition(":")
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    put("pid", os.getpid())
    if word != "waits":
        (STATE / "phase").write_text("PROCESSING")
    match word:
        case "exits":
            return ended(int(value))
        case "dies":
            subprocess.Popen([sys.executable, "-c", IGNORES], start_new_session=True)
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        case "stubborn":
            return ended(program(IGNORES))
        case "eats":
            return ended(program(EATS, value))
    while not stopped:
        time.sleep(0.02)
    return ended(143, halted=True, started=word != "waits")


def program(source: str, *arguments: str) -> int:
    child = subprocess.Popen([sys.executable, "-c", source, *arguments], start_new_session=True)
    while (code := child.poll()) is None:
        time.sleep(0.02)
    return code if code >= 0 else 128 - code


def ended(code: int, *, halted: bool = False, started: bool = True) -> int:
    put("exit", {"code": code, "started": started, "halted": halted, "finished": False})
    return code


def put(name: str, content: object) -> None:
    """All of it or nothing: the daemon and the tests may look at any moment."""
    temporary = STATE / f"{name}.tmp"
    temporary.write_text(json.dumps(content))
    temporary.rename(STATE / name)


def shipper() -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    lives = STATE / "shipper_lives"
    lives.write_text(f"{lives.read_text() if lives.exists() else ''}{os.getpid()}\n")
    put("shipper_env.json", dict(os.environ))
    fault = STATE.parent / "fault"
    if fault.exists():
        sys.stderr.write("what went wrong\n")
        return int(fault.read_text())
    while not (STATE / "exit").exists():
        time.sleep(0.02)
        if launcher_is_gone() and not (STATE / "exit").exists():
            put("exit", {"code": 137, "started": True, "lost": True})
    (STATE / "shipper").mkdir(exist_ok=True)
    put("shipper/done.json", {})
    return 0


def launcher_is_gone() -> bool:
    try:
        pid = (STATE / "pid").read_text()
    except FileNotFoundError:
        return False  # it is still to come
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # not there any more, or gone between the opening and the reading
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


if __name__ == "__main__":
    sys.exit(launcher() if sys.argv[1] == "launcher" else shipper())
