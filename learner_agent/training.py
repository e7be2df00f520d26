"""What a training program imports: report, halt_requested, checkpoint_due, checkpoint, resume_from, finish.

    from learner_agent import training

    for step in range(start + 1, steps + 1):
        loss = train(step)
        training.report(step, total=steps, loss=loss)
        halted = training.halt_requested()
        if halted or training.checkpoint_due():
            with training.checkpoint(step) as folder:
                save(model, folder / "model.bin")
        if halted:
            break
    else:
        training.finish()

Everything here is a thin writer of the files that ``learner_agent.spool`` lists, so any language can do the same.
Outside the platform the calls work and do nothing harmful: report prints, a halt is never requested, checkpoints
are written to ./checkpoints. Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from learner_agent import spool, untrusted_files

METRICS_MAX_BYTES = 256 * 1024 * 1024
LINE_NAMES, LINE_BYTES = 1_000, 60_000
"""Limits of one line of metrics.jsonl; a larger report becomes several lines."""
RESERVED = ("step", "time", "total")

_spool: Optional[spool.Spool] = None
_metrics_handle: Optional[int] = None
_torn = False  # the last line was cut off: the next one must begin on a new line
_lost = 0  # reports not kept since the last one that was
_marked: Set[str] = set()  # marks for launcher and shipper that are in the spool
_saved_at = (
    time.monotonic()
)  # when this process began or ended its last save; until then, when it began itself
_saved_for = 0  # the newest request for a checkpoint that came before this save
_saves: Dict[Tuple[int, int], int] = {}  # (step, part) -> how often this program saved it


def _inside() -> Optional[spool.Spool]:
    """The spool of the learner this program runs in; None outside the platform."""
    return _spool


def _attach() -> None:
    """At import: leave a mark for the launcher that this program checks for a halt by itself.

    What an earlier process of the attempt answered is answered.
    """
    global _spool, _saved_for
    state_dir = os.environ.get("JOB_STATE_DIR", "")
    if not state_dir or not os.environ.get("TRAINING_ID") or not os.path.isdir(state_dir):
        return
    _spool = spool.Spool(state_dir)
    try:
        (_spool.root / "imported").touch()
    except OSError:
        _spool = None
        return
    _saved_for = _number_in(_spool, "saved")


def report(step: int, total: Optional[int] = None, **metrics: float) -> None:
    """Report numbers at a step. total, the last step, enables the progress bar.

    NaN and infinities are values and are drawn. Raises TypeError or ValueError, which names what is not a number.
    """
    line: Dict[str, Any] = {"step": _whole("step", step), "time": round(time.time(), 3)}
    if total is not None:
        line["total"] = _whole("total", total)
    for name, value in metrics.items():
        if name in RESERVED:
            raise ValueError("report: %s cannot be the name of a metric" % name)
        line[name] = _number(name, value)
    home = _inside()
    if home is None:
        sys.stdout.write(" ".join("%s=%s" % item for item in line.items() if item[0] != "time") + "\n")
        return
    head = {name: line.pop(name) for name in RESERVED if name in line}
    _append(home, "".join(text + "\n" for text in _lines(head, line)).encode())


def halt_requested() -> bool:
    """True once a halt was requested. Cheap enough for every step: it checks for one file."""
    home = _inside()
    if home is None:
        return False
    _mark(home, "checks_halt")
    if not os.path.exists(os.path.join(str(home.root), "halt")):
        return False
    _mark(home, "halt_noticed")
    return True


def checkpoint_due(every_s: Optional[float] = None) -> bool:
    """True once it is time to save: `checkpoint.every` of the job has passed since this process saved last, or began,
    or someone has requested a checkpoint meanwhile. Cheap enough for every step.

    A save is a block of checkpoint() in this process, from its begin on. It says nothing of a halt, which
    halt_requested() does. Learners that save together ask in one of them and share the answer. every_s: seconds in
    place of the job's (LUTHIER_CHECKPOINT_EVERY_S); outside the platform, where neither is set, it is never due.
    """
    home = _inside()
    if home is not None:
        _mark(home, "checks_save")
        if _number_in(home, "save") > _saved_for:
            return True
    if every_s is None:
        every_s = float(os.environ.get("LUTHIER_CHECKPOINT_EVERY_S") or "inf")
    return time.monotonic() - _saved_at >= every_s


@contextlib.contextmanager
def checkpoint(step: int, part: int = 0, of: int = 1) -> Iterator[Path]:
    """Give a fresh directory to save into; it counts only if the block succeeds.

    A gang that saves in parts calls this in each learner with its part and the number of parts. The directory
    becomes CHECKPOINT_DIR/step-<n> (for parts: step-<n>/part-<k>) in one rename, after its manifest.json is
    written: a save that is cut off leaves nothing that could be taken for one. Raises TypeError or ValueError for
    step, part or of that are not whole numbers of at least 0, or a part that is not below `of`; OSError.
    """
    global _saved_at, _saved_for
    step, part, of = _whole("step", step), _whole("part", part), _whole("of", of)
    if part >= of:
        raise ValueError("checkpoint: part %d of %d does not exist; parts count from 0" % (part, of))
    home = _inside()
    request = _number_in(home, "save") if home is not None else 0
    before = _saved_at, _saved_for
    _saved_at, _saved_for = time.monotonic(), request
    base = checkpoint_dir()
    base.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".saving-step-%d-" % step, dir=str(base)))
    try:
        yield fresh
        final = base / ("step-%d" % step)
        if of > 1:
            final.mkdir(exist_ok=True)
            final = final / ("part-%d" % part)
        ordinal = max(_saves.get((step, part), 0), _noted_saves(step, part), _saved_before(final))
        _write_manifest(fresh, step, part, of, ordinal)
        _put_in_place(fresh, final)
        _saves[(step, part)] = ordinal + 1
        _note_save(step, part, ordinal + 1)
    except BaseException:
        _saved_at, _saved_for = before
        shutil.rmtree(str(fresh), ignore_errors=True)
        raise
    _saved_at = time.monotonic()
    if home is not None:
        if request > _number_in(home, "saved"):
            with contextlib.suppress(OSError):  # a full disk: the request still waits
                home.write("saved", {"n": request})
        home.notify(state=True)


def resume_from() -> Optional[Path]:
    """The folder of the checkpoint to resume from, or None to start from scratch.

    Of a checkpoint in as many parts as there are learners, this learner's part; where their number has changed, the
    folder with all parts.
    """
    place = os.environ.get("RESUME_FROM", "")
    return Path(place) if place else None


def finish() -> None:
    """Mark training as complete: this wins over a halt that was requested meanwhile. Raises OSError."""
    home = _inside()
    if home is not None:
        home.write("finished", {"at_ms": untrusted_files.now_ms()})
        home.notify(state=True)


def rank() -> int:
    """This learner's rank in its gang, from 0."""
    return int(os.environ.get("LUTHIER_RANK") or 0)


def world_size() -> int:
    """The number of learners in the gang."""
    return int(os.environ.get("NUM_LEARNERS") or 1)


def batch_size() -> Optional[int]:
    """Samples in a step over all learners, as the platform chose for this attempt; None: the program has its own."""
    return int(os.environ.get("LUTHIER_BATCH") or 0) or None


def micro_batch_size() -> Optional[int]:
    """Samples that this learner computes at once. It does so until all learners have computed batch_size() samples
    together, then they exchange gradients. None: the program has its own."""
    return int(os.environ.get("LUTHIER_MICRO_BATCH") or 0) or None


def checkpoint_dir() -> Path:
    """The folder of all checkpoints: CHECKPOINT_DIR, or ./checkpoints outside the platform."""
    return Path(os.environ.get("CHECKPOINT_DIR") or "checkpoints")


def _mark(home: spool.Spool, name: str) -> None:
    """Leave an empty file that says what this program does: see ``spool``."""
    if name not in _marked:
        try:
            (home.root / name).touch()
            _marked.add(name)
        except OSError:
            pass  # no room for an empty file; tried again at the next step


def _number_in(home: spool.Spool, name: str) -> int:
    """Of the newest request for a checkpoint ("save"), or the newest that a save answered ("saved"); 0: none."""
    return int(untrusted_files.number_or((home.read(name) or {}).get("n"), 0))


def _whole(name: str, value: Any) -> int:
    try:
        number = int(value)  # NumPy integers and tensors work, too
    except (TypeError, ValueError, OverflowError):
        raise TypeError("%s: %r is not a whole number" % (name, value)) from None
    if number != value or number < 0:
        raise ValueError("%s: %r is not a whole number of at least 0" % (name, value))
    return number


def _number(name: str, value: Any) -> Any:
    try:
        number = float(value)  # a tensor with one element, NumPy's numbers, bool
    except (TypeError, ValueError):
        raise TypeError("report: %s: %r is not a number" % (name, value)) from None
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else ("Infinity" if number > 0 else "-Infinity")


def _lines(head: Dict[str, Any], values: Dict[str, Any]) -> List[str]:
    """One line, or several of the same step so that none exceeds the limits."""
    text = json.dumps({**head, **values}, separators=(",", ":"))
    if len(values) < 2 or (len(text) <= LINE_BYTES and len(values) <= LINE_NAMES):
        return [text]
    items, half = list(values.items()), len(values) // 2
    return _lines(head, dict(items[:half])) + _lines(head, dict(items[half:]))


def _append(home: spool.Spool, report: bytes) -> None:
    """Add one report in one write, so that several processes may report at once. A full disk never stops training:
    lost reports are counted, and a message says how many."""
    global _metrics_handle, _torn, _lost
    try:
        if _metrics_handle is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            _metrics_handle = os.open(str(home.metrics), flags, 0o644)
        if os.fstat(_metrics_handle).st_size >= METRICS_MAX_BYTES:
            raise OSError("metrics.jsonl has reached %d bytes" % METRICS_MAX_BYTES)
        text = spool.TORN + b"\n" + report if _torn else report
        if os.write(_metrics_handle, text) < len(text):  # the disk took only a part
            _torn = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        if not _lost:
            _warn("metrics are not being kept: %s" % error)
        _lost += 1
        return
    if _lost:
        _warn("metrics are kept again; %d report%s lost" % (_lost, " was" if _lost == 1 else "s were"))
    _torn, _lost = False, 0
    home.notify()


def _warn(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write("luthier: %s\n" % text)


def _put_in_place(fresh: Path, final: Path) -> None:
    """Rename the directory into place, instead of an earlier save of the same name."""
    if final.exists():
        old = Path(tempfile.mkdtemp(prefix=".old-", dir=str(final.parent)))
        os.replace(str(final), str(old / "was"))
        os.replace(str(fresh), str(final))
        shutil.rmtree(str(old), ignore_errors=True)
    else:
        os.replace(str(fresh), str(final))


def _noted_saves(step: int, part: int) -> int:
    """How often this attempt saved this part of the step, in any of its processes: the folder may be gone since."""
    home = _inside()
    if home is None:
        return 0
    try:
        lines = (home.root / ("saves-%d" % part)).read_bytes().splitlines()
    except OSError:
        return 0
    noted = [line.split() for line in lines]  # a full disk may have cut off any of them
    counts = [each[1] for each in noted if len(each) == 2 and each[0] == b"%d" % step]
    return max([int(count) for count in counts if count.isdigit()], default=0)


def _note_save(step: int, part: int, count: int) -> None:
    home = _inside()
    if home is not None:
        try:
            with (home.root / ("saves-%d" % part)).open("ab") as sink:
                sink.write(b"%d %d\n" % (step, count))
        except OSError:
            pass  # a full disk: this process remembers it


def _saved_before(final: Path) -> int:
    """The ordinal after that of the save which is there: of an earlier process of this attempt, or 0."""
    try:
        found = json.loads((final / "manifest.json").read_bytes())
        return int(found["ordinal"]) + 1
    except (OSError, ValueError, TypeError, KeyError):
        return 0  # none, or one that was restored


def _write_manifest(folder: Path, step: int, part: int, of: int, ordinal: int) -> None:
    """ordinal: how often this step was saved before, so that parts of two saves are never mixed."""
    files: List[Dict[str, Any]] = []
    for base, _, names in sorted(os.walk(str(folder))):
        for name in sorted(names):
            path = Path(base, name)
            relative = path.relative_to(folder).as_posix()
            if relative != "manifest.json" and path.is_file() and not path.is_symlink():
                files.append({"path": relative, "size": path.stat().st_size, "sha256": _sha256(path)})
    manifest = {
        "step": step, "ordinal": ordinal, "part": part, "of": of, "world_size": world_size(), "files": files,
    }  # fmt: skip
    untrusted_files.replace_file(folder / "manifest.json", json.dumps(manifest, indent=1).encode())


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        for block in iter(lambda: source.read(1024 * 1024), b""):
            digest.update(block)
        os.fsync(source.fileno())
    return digest.hexdigest()


_attach()
