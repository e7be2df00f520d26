"""Print numbered lines, so that a missing one is noticed: `python count.py LINES [PER_SECOND]`.

After a halt and a resume it continues with the next number. Killed without a halt it continues after the last saved
number, so numbers may appear twice (in two attempts) but are never lost.
"""

import sys
import time
import zlib

from learner_agent import training


def main() -> None:
    lines = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    per_second = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    number = first = start()
    began = time.monotonic()
    while number < lines:
        number += 1
        sys.stdout.write(line(number))
        if per_second:
            sys.stdout.flush()
            time.sleep(max(0.0, began + (number - first) / per_second - time.monotonic()))
        if not per_second and number % 1000:
            continue
        halted = training.halt_requested()
        if halted or training.checkpoint_due():
            save(number, lines)
        if halted:
            return
    save(number, lines)
    training.finish()


def line(number: int) -> str:
    """Return the numbered line with its own checksum: `line 17 5f1c2d3e`."""
    text = f"line {number}"
    return f"{text} {zlib.crc32(text.encode()):08x}\n"


def start() -> int:
    """Return how many lines earlier attempts are known to have printed."""
    folder = training.resume_from()
    return int((folder / "number").read_text()) if folder else 0


def save(number: int, lines: int) -> None:
    """Save the number. Flush first: lines that a checkpoint counts must have left this process."""
    sys.stdout.flush()
    training.report(number, total=lines, lines=number)
    with training.checkpoint(number) as folder:
        (folder / "number").write_text(str(number))


if __name__ == "__main__":
    main()
