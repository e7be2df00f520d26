"""What made a program fail, read from its exit code and the end of its log. Pure.

The lifecycle stores the sentence as the job's reason when a failed attempt ends, so that lists, cards, events and the
API show the same one. What neither the exit code nor the log says is said to be unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from jobs.log_levels import RANK, After, Kind, classify

LOOK = 200
"""Lines at the end of a log that are searched."""
NEAR = 20
"""What only looks like a cause must be among this many of the last lines: programs print what they survive, too."""
MESSAGE = 5
"""Lines of an exception's message that are read."""
WORDS = 200
"""Most characters of a log line that a sentence repeats."""
SHELL = 128
"""A shell's exit code of a program that a signal ended is SHELL + the signal's number."""


class FailureCause(StrEnum):
    """Why a program failed, as ``cause`` in the numbers of a job's reason."""

    COMMAND_NOT_FOUND = "command_not_found"
    NOT_EXECUTABLE = "not_executable"
    BAD_ARGUMENTS = "bad_arguments"
    MISSING_FILE = "missing_file"
    ACCESS_DENIED = "access_denied"
    IMPORT_ERROR = "import_error"
    OUT_OF_MEMORY = "out_of_memory"
    GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
    TOO_MANY_PROCESSES = "too_many_processes"
    PEER_LOST = "peer_lost"
    EXCEPTION = "exception"
    SIGNAL = "signal"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """did: what the learner did, to follow its name. line: the log line that says so, else the last one, if any.

    said: whether that line names the cause. remedy: what to do, as a sentence; empty where nothing is known.
    """

    cause: FailureCause
    did: str
    remedy: str = ""
    line: int | None = None
    said: bool = False

    def sentence(self, rank: int) -> str:
        """What people read of it everywhere."""
        where = f" (log line {self.line})" if self.said else ""
        return f"Learner {rank} {self.did}{where}.{' ' if self.remedy else ''}{self.remedy}"


@dataclass(frozen=True, slots=True)
class _Rule:
    """A line that names the cause. did: with the groups of the pattern. codes: the exit codes it goes with; empty: any.

    raised: the line must be the end of a traceback. usage: how to call the program must come before it. Without raised
    it must be near the end of the log, or belong to a traceback.
    """

    cause: FailureCause
    pattern: re.Pattern[str]
    did: str
    remedy: str
    codes: frozenset[int] = frozenset()
    raised: bool = False
    usage: bool = False


def _rule(
    cause: FailureCause,
    pattern: str,
    did: str,
    remedy: str,
    *codes: int,
    raised: bool = False,
    usage: bool = False,
) -> _Rule:
    return _Rule(cause, re.compile(pattern), did, remedy, frozenset(codes), raised, usage)


CHECK_COMMAND = "Check its spelling, and that the job's environment has it."
CHECK_PATH = (
    "Check the path: the code is in the working folder, data under $DATA_DIR."
    " The local cluster hides files of the machine."
)
CHECK_ACCESS = (
    "Read data under $DATA_DIR; write to $RESULT_DIR, $CHECKPOINT_DIR or $TMPDIR. On the local cluster operators add"
    " other paths by LUTHIER_PROGRAM_READS and LUTHIER_PROGRAM_WRITES."
)
KEEP_FOLDER = "The folder itself stays: remove what is in it instead."
CHECK_MODULE = "List it in requirements, add it to the code, or use an environment that has it."
LESS_GPU_MEMORY = "Use a smaller batch or model, or a GPU with more memory."
MORE_MEMORY = "Request more memory."
FEWER_PROCESSES = (
    "It has as many processes and threads as it may have, or no memory for another: start fewer workers or threads"
    " (OMP_NUM_THREADS)."
)
NOT_STARTED = "could not start a process or a thread: {text}"
CHECK_PEERS = "Check the logs of the other learners and the network between their nodes."
FIX_ARGUMENTS = "Correct the command."
NOT_COMPILED = "(?:SyntaxError|IndentationError|TabError): "
"""How Python begins the last line about a program that it cannot compile."""
LOST_PEER = "lost the connection to another learner: {text}"

# In order: of several rules that match one line, the first one counts.
_RULES = (
    _rule(
        FailureCause.COMMAND_NOT_FOUND,
        r"^(?:\S*sh|/bin/sh): (?:line )?(?:\d+: )?(?P<text>.+?): (?:command )?not found$",
        "could not find the command {text}",
        CHECK_COMMAND,
        127,
    ),
    _rule(
        FailureCause.COMMAND_NOT_FOUND,
        r"^(?:luthier: cannot start the program|env|/usr/bin/env): .*?[‘'](?P<text>[^'’]+)['’]",
        "could not find the command {text}",
        CHECK_COMMAND,
        127,
    ),
    _rule(
        FailureCause.MISSING_FILE,
        r"^(?:\S*sh|\S+\.sh): (?:line )?(?:\d+: )?(?:cannot open )?(?P<text>.+?): No such file(?: or directory)?$",
        "could not find the file {text}",
        CHECK_PATH,
        2,
        127,
    ),
    _rule(
        FailureCause.MISSING_FILE,
        r"error while loading shared libraries: (?P<text>[^:]+): cannot open",
        "could not load the shared library {text}",
        "Use a runtime or an image that has it.",
        127,
    ),
    _rule(
        FailureCause.NOT_EXECUTABLE,
        r"^(?:\S*sh|/bin/sh): (?:line )?(?:\d+: )?(?P<text>.+?): Permission denied$",
        "could not run {text}: it is not executable",
        "Make the file executable, or start it with its interpreter.",
        126,
    ),
    _rule(
        FailureCause.MISSING_FILE,
        r"can't open file '(?P<text>[^']+)': \[Errno 2\]",
        "could not find the file {text}",
        CHECK_PATH,
        2,
    ),
    _rule(
        FailureCause.BAD_ARGUMENTS,
        r"^(?!\S+(?::\d+|\(\d+\)): )\S+: error: (?P<text>.+)$",  # not of a compiler, at a place in a file
        "did not accept its arguments: {text}",
        FIX_ARGUMENTS,
        2,
        usage=True,
    ),
    _rule(
        FailureCause.IMPORT_ERROR,
        r"^ModuleNotFoundError: No module named '(?P<text>[^']+)'",
        "could not import the module {text}",
        CHECK_MODULE,
        raised=True,
    ),
    _rule(
        FailureCause.IMPORT_ERROR,
        r"^\S*python[\d.]*: No module named '?(?P<text>[^\s;']+)",
        "could not import the module {text}",
        CHECK_MODULE,
        1,
    ),
    _rule(
        FailureCause.IMPORT_ERROR,
        r"^\S*python[\d.]*: Error while finding module specification for '(?P<text>[^']+)'",
        "could not import the module {text}",
        CHECK_MODULE,
        1,
    ),
    _rule(
        FailureCause.IMPORT_ERROR,
        r"^ImportError: (?P<text>.+)$",
        "could not import what it needs: {text}",
        "Check the versions in the job's environment.",
        raised=True,
    ),
    _rule(
        FailureCause.MISSING_FILE,
        r"^FileNotFoundError: \[Errno 2\] [^:]+: b?(?P<quote>['\"])(?P<text>.+?)(?P=quote)",
        "could not find the file {text}",
        CHECK_PATH,
        raised=True,
    ),
    _rule(  # of these, what is in them is the program's; on the local cluster that is how a learner's folder is named
        FailureCause.ACCESS_DENIED,
        r"^PermissionError: \[Errno 13\] [^:]+: (?:'[^']*' -> )?'(?P<text>/\S+/job-[0-9a-z]+-\d+-\d+/"
        r"(?:results|code|state/checkpoints))'(?: -> '[^']*')?$",
        "could not remove or replace the folder {text}",
        KEEP_FOLDER,
        raised=True,
    ),
    _rule(
        FailureCause.ACCESS_DENIED,
        r"^(?:PermissionError: \[Errno 13\]|OSError: \[Errno 30\]) [^:]+: b?(?P<quote>['\"])(?P<text>.+?)(?P=quote)",
        "was denied access to {text}",
        CHECK_ACCESS,
        raised=True,
    ),
    _rule(
        FailureCause.GPU_OUT_OF_MEMORY,
        r"(?P<text>CUDA out of memory\.? Tried to allocate [\d.]+ [KMG]iB)",
        "ran out of GPU memory: {text}",
        LESS_GPU_MEMORY,
    ),
    _rule(
        FailureCause.GPU_OUT_OF_MEMORY,
        r"(?P<text>(?:CUDA|HIP) (?:error: )?out of memory|CUDA_ERROR_OUT_OF_MEMORY"
        r"|RESOURCE_EXHAUSTED: Out of memory[^.]*|OOM when allocating tensor[^;]*)",
        "ran out of GPU memory: {text}",
        LESS_GPU_MEMORY,
    ),
    _rule(
        FailureCause.OUT_OF_MEMORY,
        r"^(?P<text>(?:numpy\.\S*)?\w*MemoryError.*)$",
        "ran out of memory: {text}",
        MORE_MEMORY,
        raised=True,
    ),
    _rule(
        FailureCause.TOO_MANY_PROCESSES,
        r"^RuntimeError: (?P<text>can't start new thread)$",
        NOT_STARTED,
        FEWER_PROCESSES,
        raised=True,
    ),
    _rule(
        FailureCause.TOO_MANY_PROCESSES,
        r"(?P<text>[Ff]ork: (?:retry: )?Resource temporarily unavailable|[Cc]annot fork"
        r"|pthread_create failed for thread \d+ of \d+: Resource temporarily unavailable)",
        NOT_STARTED,
        FEWER_PROCESSES,
    ),
    _rule(
        FailureCause.PEER_LOST,
        r"(?P<text>Connection (?:closed|reset) by (?:remote )?peer(?: \[[^\]]+\])?)",
        LOST_PEER,
        CHECK_PEERS,
    ),
    _rule(
        FailureCause.PEER_LOST,
        r"(?P<text>ncclRemoteError|remote process exited|Watchdog caught collective operation timeout"
        r"|NCCL communicator was aborted|Barrier timed out|coordination service.* (?:heartbeat|unavailable)"
        r"|The following tasks are unhealthy)",
        LOST_PEER,
        CHECK_PEERS,
    ),
    _rule(
        FailureCause.EXCEPTION,
        rf"^(?P<text>{NOT_COMPILED}.*)$",
        "failed with {text}",
        "Correct the program at the place that the log shows.",
        raised=True,
    ),
    _rule(
        FailureCause.EXCEPTION,
        r"^(?P<text>.+)$",
        "failed with {text}",
        "See the traceback in the log.",
        raised=True,
    ),
)

_BY_CODE = {
    126: (
        FailureCause.NOT_EXECUTABLE,
        "exited with code 126, a shell's code for what it cannot execute",
        CHECK_COMMAND,
    ),
    127: (
        FailureCause.COMMAND_NOT_FOUND,
        "exited with code 127, a shell's code for a command that it did not find",
        CHECK_COMMAND,
    ),
}
SIGNALS = {
    2: "was interrupted (SIGINT",
    4: "crashed on an illegal instruction (SIGILL",
    6: "aborted (SIGABRT",
    7: "crashed on a bus error (SIGBUS",
    8: "crashed on an arithmetic error (SIGFPE",
    9: "was killed (SIGKILL",
    11: "crashed on an invalid memory access (SIGSEGV",
    13: "wrote to a closed pipe (SIGPIPE",
    15: "was terminated (SIGTERM",
}
SIGNAL_REMEDIES = {
    7: "Often /dev/shm is full: use fewer data-loading workers.",
    9: "Its own memory was not reported as the cause; often the node runs out of memory.",
    11: "Often a native library does not match the others: check their versions.",
}
CRASHED = re.compile(r"^(?:terminate called|Fatal Python error|Segmentation fault)|^\s*what\(\):")
"""What native code prints when it dies."""

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
FILE = re.compile(r'^ +File ".+", line \d+$')
"""Where Python could not compile a program: no traceback begins before it."""
GROUP = re.compile(r"^\s*\+ Exception Group Traceback ")
MARGIN = re.compile(r"^\s+(?:\| ?|\+ |\+(?=-))")
"""What Python prints before each line of an exception group."""
OF_A_SERVER = re.compile(
    r"\b(?:urllib|urllib3|requests|http\.client|httpx|httpcore|aiohttp|Connection aborted)\b"
)
"""A line that names one of these is about a connection to some server, not to another learner."""
RETRIES = re.compile(r"\bretrying\b|\bretry \d", re.IGNORECASE)
"""Of an error that the program survived for now."""
DUMPED = re.compile(r"^\s|^frame #\d|^[-=*]{5,}")
"""A line of what is dumped after a cause, such as the stack of native code."""
USAGE, USAGE_ENDS = re.compile(r"^usage: ", re.IGNORECASE), re.compile(r"^\s+(?!.* \| ).*[\[\]]")
WRAPPERS = ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError", "SystemExit")
"""Exceptions that only say that something else failed before."""

Line = tuple[int, str]
"""Number and text."""


def diagnose(code: int, lines: Sequence[Line], *, learners: int = 1) -> Diagnosis:
    """Why a program ended with this exit code (not 0).

    lines: the end of its log without escape sequences. learners: of its attempt; a single one can lose no other.
    """
    read = [(n, _plain(text)) for n, text in lines[-LOOK:]]
    found = _by_log(code, read, is_gang=learners > 1)
    signal = code - SHELL if SHELL < code < SHELL + 65 else 0
    if found is not None and not (signal and found.cause is FailureCause.EXCEPTION):
        return found
    last, words = next(((n, text) for n, text in reversed(read) if text.strip()), (None, ""))
    if signal:
        return _by_signal(signal, code, read, last)
    if code in _BY_CODE:
        return Diagnosis(*_BY_CODE[code], last)
    why = (
        f' for a reason that the platform does not recognize. Its log ends with "{_shortened(words)}"'
        if words
        else "; it printed nothing"
    )
    return Diagnosis(FailureCause.UNKNOWN, f"exited with code {code}{why}", line=last)


def _by_log(code: int, lines: Sequence[Line], *, is_gang: bool) -> Diagnosis | None:
    """By the last line that names a cause."""
    lines = list(_without_margins(lines))
    raised = set(_ends_of_tracebacks(lines))
    printed = _near_the_end(lines) if code > SHELL else _near_the_end(lines) | set(_of_tracebacks(lines))
    for at, (n, text) in reversed(list(enumerate(lines))):
        for rule in _RULES:
            if n not in (raised if rule.raised else printed) or (rule.codes and code not in rule.codes):
                continue
            if not rule.raised and n not in raised and RETRIES.search(text):
                continue
            if rule.usage and not _follows_usage(lines[:at]):
                continue
            if rule.cause is FailureCause.PEER_LOST and (not is_gang or OF_A_SERVER.search(text)):
                continue
            if match := rule.pattern.search(text):
                did = rule.did.format(text=_shortened(match["text"]))
                return Diagnosis(rule.cause, did, rule.remedy, n, said=True)
    return None


def _near_the_end(lines: Sequence[Line]) -> set[int]:
    """The last lines, of which those of tracebacks and dumps do not count."""
    dumped, near, left = set(_of_tracebacks(lines)), set(), NEAR
    for n, text in reversed(lines):
        if left == 0:
            break
        near.add(n)
        left -= bool(text.strip()) and n not in dumped and not DUMPED.search(text)
    return near


def _of_tracebacks(lines: Sequence[Line]) -> Iterator[int]:
    """The lines of tracebacks, with those after their ends that may belong to the exception's message."""
    after, follow = After.NOTHING, 0
    for n, text in lines:
        kind, after = classify(text, after)
        follow = MESSAGE if kind is Kind.RAISED else max(0, follow - 1)
        if follow or kind in (Kind.TRACEBACK, Kind.BODY):
            yield n


def _follows_usage(lines: Sequence[Line]) -> bool:
    """Whether a program has printed how to call it, or its last line: of some that is longer than what is read."""
    return any(USAGE.match(text) for _, text in lines) or bool(lines and USAGE_ENDS.match(lines[-1][1]))


def _without_margins(lines: Sequence[Line]) -> Iterator[Line]:
    """The lines, those of exception groups as Python prints the tracebacks of others."""
    inside = False
    for n, text in lines:
        inside = bool(GROUP.match(text) or (inside and MARGIN.match(text)))
        yield n, MARGIN.sub("", text) if inside else text


def _ends_of_tracebacks(lines: Sequence[Line]) -> Iterator[int]:
    """The line of each traceback that names its exception, and the one of a program that was never compiled."""
    after, compiling = After.NOTHING, False
    for n, text in lines:
        kind, after = classify(text, after)
        is_raised = kind is Kind.RAISED and not text.startswith(WRAPPERS)
        if is_raised or (compiling and re.match(NOT_COMPILED, text)):
            yield n
        compiling = bool(FILE.match(text)) or (compiling and text.startswith("  "))


def _by_signal(signal: int, code: int, lines: Sequence[Line], last: int | None) -> Diagnosis:
    crash = next((n for n, text in reversed(lines) if CRASHED.search(text)), None)
    did = f"{SIGNALS.get(signal, f'was ended by a signal (signal {signal}')}, exit code {code})"
    remedy = SIGNAL_REMEDIES.get(signal, "")
    return Diagnosis(FailureCause.SIGNAL, did, remedy, crash or last, said=crash is not None)


def _plain(text: str) -> str:
    """A line without control characters and the rank before it."""
    return RANK.sub("", CONTROLS.sub("", text)).rstrip()


def _shortened(text: str) -> str:
    text = text.strip().rstrip(".")
    return text if len(text) <= WORDS else text[: WORDS - 1] + "…"
