"""Measure published figures again: `python tools/measure.py [NAME …]`, each by the command that its result has.

Without names, all but those against other systems, which are installed for it (bench/peers). A benchmark that fails
keeps its figures, and the others are measured all the same.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PEERS = "bench.peers."


def main() -> int:
    commands = {path.stem: json.loads(path.read_text())["command"] for path in sorted(RESULTS.glob("*.json"))}
    names = sys.argv[1:] or [name for name, command in commands.items() if PEERS not in command]
    if unknown := sorted(set(names) - commands.keys()):
        sys.exit(f"No benchmark named {', '.join(unknown)} was measured before. Known: {', '.join(commands)}")
    failed = []
    for command in dict.fromkeys(commands[name] for name in names):  # some write several results
        print(f"\n{command}", flush=True)
        if subprocess.call([sys.executable, *command.split()[1:]], cwd=ROOT, stdin=subprocess.DEVNULL) != 0:
            failed.append(command)
    if failed:
        print("\nFailed:", *failed, sep="\n  ", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
