"""Small programs that browser tests run as jobs; each is whole and ordinary."""

TRAINER = """\
import json, math, sys, time
from pathlib import Path
from learner_agent import training

TOTAL, STEP_S = int(sys.argv[1]), float(sys.argv[2])
gate = Path(sys.argv[3]) if len(sys.argv) > 3 else None  # the last step waits for this file
start = 0
if saved := training.resume_from():
    start = json.loads((saved / "state.json").read_text())["step"]
print(f"starting at step {start}", flush=True)

def save(step):
    with training.checkpoint(step) as folder:
        (folder / "state.json").write_text(json.dumps({"step": step}))

for step in range(start + 1, TOTAL + 1):
    while step == TOTAL and gate and not gate.exists():
        time.sleep(0.05)
    loss = 2.0 * math.exp(-step / (TOTAL / 3)) + 0.1 * math.sin(step)
    training.report(step, total=TOTAL, loss=loss, lr=0.1 / step)
    print(f"step {step} loss={loss:.4f}", flush=True)
    if step % 50 == 0 or training.checkpoint_due():
        save(step)
    if training.halt_requested():
        save(step)
        print("halt requested, saved", flush=True)
        sys.exit(0)
    time.sleep(STEP_S)
training.finish()
print("done", flush=True)
"""

COUNTER = """\
import sys, time

COUNT, BURST, PAUSE = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
for first in range(1, COUNT + 1, BURST):
    sys.stdout.write("".join(f"line {n}\\n" for n in range(first, min(first + BURST, COUNT + 1))))
    sys.stdout.flush()
    time.sleep(PAUSE)
"""

COUNTS_UNTIL = """\
import pathlib, sys, time

n, enough, burst, pause = 0, pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
while not enough.exists():
    sys.stdout.write("".join(f"line {n + one}\\n" for one in range(1, burst + 1)))
    sys.stdout.flush()
    n += burst
    time.sleep(pause)
"""

WAITER = """\
import time
print("waiting", flush=True)
time.sleep(3600)
"""

BROKEN = """\
import sys
print("loading data", flush=True)
print("UserWarning: 3 files are empty", flush=True)
def train():
    raise ValueError("cannot read shard <3>")
train()
"""

COLORS = """\
import sys
print("\\x1b[1mbold\\x1b[0m \\x1b[31mred\\x1b[0m \\x1b[38;5;208morange\\x1b[0m \\x1b[38;2;20;200;120mgreen\\x1b[0m")
print("<img src=x onerror=alert(1)> & <b>not bold</b>")
print("\\x1b]8;;http://evil.example\\x07link\\x1b]8;;\\x07 and https://example.org/page?x=1")
print("right\\u202eleft and \\x07bell")
print("x" * 30000)
for n in range(20):
    print(f"\\r{n * 5:3d} %", end="", flush=True)
print("\\rdone   ")
print("no newline at the end", end="")
"""

OWN_WAY = """\
import os, pathlib, signal, sys, time

def stop(*_):
    (pathlib.Path(os.environ["CHECKPOINT_DIR"]) / "weights.bin").write_bytes(b"weights")
    sys.exit(0)

signal.signal(signal.SIGTERM, stop)
for epoch in range(3):
    for batch in range(1, 21):
        print(f"epoch {epoch} batch {batch}/20 loss={2 - (20 * epoch + batch) / 100:.2f}", flush=True)
        time.sleep(0.02)
time.sleep(3600)
"""
