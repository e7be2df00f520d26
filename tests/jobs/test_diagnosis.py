"""Why a program failed, from its exit code and the last lines that real programs print."""

from __future__ import annotations

import pytest

from jobs.diagnosis import FailureCause, diagnose

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'

GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "train.py", line 9, in <module>
  |     raise ExceptionGroup("two", [e])
  | ExceptionGroup: two (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "train.py", line 2, in f
    |     raise ValueError("leaf")
    | ValueError: leaf
    +------------------------------------"""
"""As Python 3.13 prints it."""

SAID: list[tuple[str, int, str, FailureCause, str]] = [
    ("a file that is another job's", 1,
     TRACEBACK + "PermissionError: [Errno 13] Permission denied: '/srv/x'",
     FailureCause.ACCESS_DENIED, "was denied access to /srv/x"),
    ("a folder of its own that it removes", 1,
     TRACEBACK + "PermissionError: [Errno 13] Permission denied: '/srv/nodes/local/job-6g11b0t3dyyf-1-0/results'",
     FailureCause.ACCESS_DENIED,
     "could not remove or replace the folder /srv/nodes/local/job-6g11b0t3dyyf-1-0/results"),
    ("a folder of its own that it replaces", 1,
     TRACEBACK + "PermissionError: [Errno 13] Permission denied: 'a' -> '/srv/job-6g11b0t3dyyf-1-0/results'",
     FailureCause.ACCESS_DENIED, "could not remove or replace the folder /srv/job-6g11b0t3dyyf-1-0/results"),
    ("a folder of its own that it renames", 1,
     TRACEBACK + "PermissionError: [Errno 13] Permission denied: '/srv/job-6g11b0t3dyyf-1-0/code' -> 'old'",
     FailureCause.ACCESS_DENIED, "could not remove or replace the folder /srv/job-6g11b0t3dyyf-1-0/code"),
    ("a file in a folder of its own", 1,
     TRACEBACK + "PermissionError: [Errno 13] Permission denied: '/srv/nodes/local/job-6g11b0t3dyyf-1-0/code/x'",
     FailureCause.ACCESS_DENIED, "was denied access to /srv/nodes/local/job-6g11b0t3dyyf-1-0/code/x"),
    ("a folder that is read-only", 1,
     TRACEBACK + "OSError: [Errno 30] Read-only file system: '/usr/x'",
     FailureCause.ACCESS_DENIED, "was denied access to /usr/x"),
    ("a misspelled command (dash)", 127, "/bin/sh: 1: pythn: not found", FailureCause.COMMAND_NOT_FOUND,
     "could not find the command pythn"),
    ("a misspelled command (bash)", 127, "train.sh: line 4: nvcc: command not found", FailureCause.COMMAND_NOT_FOUND,
     "could not find the command nvcc"),
    ("a command that is a list", 127,
     "luthier: cannot start the program: [Errno 2] No such file or directory: 'pythn'", FailureCause.COMMAND_NOT_FOUND,
     "could not find the command pythn"),
    ("a script without its bit", 126, "/bin/sh: 1: ./run.sh: Permission denied", FailureCause.NOT_EXECUTABLE,
     "could not run ./run.sh: it is not executable"),
    ("a missing program", 2, "python: can't open file '/job/code/trian.py': [Errno 2] No such file or directory",
     FailureCause.MISSING_FILE, "could not find the file /job/code/trian.py"),
    ("a missing data file", 1, TRACEBACK + "FileNotFoundError: [Errno 2] No such file or directory: 'data/x.csv'",
     FailureCause.MISSING_FILE, "could not find the file data/x.csv"),
    ("a missing package", 1, TRACEBACK + "ModuleNotFoundError: No module named 'torchvision'",
     FailureCause.IMPORT_ERROR, "could not import the module torchvision"),
    ("a changed package", 1, TRACEBACK + "ImportError: cannot import name 'f' from 'g' (/x/g.py)",
     FailureCause.IMPORT_ERROR, "could not import what it needs: cannot import name 'f' from 'g' (/x/g.py)"),
    ("wrong arguments", 2, "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --epoch 5",
     FailureCause.BAD_ARGUMENTS, "did not accept its arguments: unrecognized arguments: --epoch 5"),
    ("PyTorch on a full GPU", 1,
     TRACEBACK + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total",
     FailureCause.GPU_OUT_OF_MEMORY, "ran out of GPU memory: CUDA out of memory. Tried to allocate 20.00 MiB"),
    ("JAX on a full GPU", 1,
     TRACEBACK + "jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.",
     FailureCause.GPU_OUT_OF_MEMORY,
     "ran out of GPU memory: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes"),
    ("TensorFlow on a full GPU", 1, "OOM when allocating tensor with shape[64,3]; on GPU",
     FailureCause.GPU_OUT_OF_MEMORY, "ran out of GPU memory: OOM when allocating tensor with shape[64,3]"),
    ("a thread above the limit", 1, TRACEBACK + "RuntimeError: can't start new thread",
     FailureCause.TOO_MANY_PROCESSES, "could not start a process or a thread: can't start new thread"),
    ("a process above the limit (bash)", 254,
     "train.sh: fork: retry: Resource temporarily unavailable\ntrain.sh: fork: Resource temporarily unavailable",
     FailureCause.TOO_MANY_PROCESSES,
     "could not start a process or a thread: fork: Resource temporarily unavailable"),
    ("a process above the limit (dash)", 2, "/bin/sh: 1: Cannot fork",
     FailureCause.TOO_MANY_PROCESSES, "could not start a process or a thread: Cannot fork"),
    ("a library's threads above the limit", 1,
     "OpenBLAS blas_thread_init: pthread_create failed for thread 12 of 64: Resource temporarily unavailable",
     FailureCause.TOO_MANY_PROCESSES,
     "could not start a process or a thread: pthread_create failed for thread 12 of 64: "
     "Resource temporarily unavailable"),
    ("Python's own memory error", 1, TRACEBACK + "MemoryError", FailureCause.OUT_OF_MEMORY,
     "ran out of memory: MemoryError"),
    ("Gloo without its peer", 1,
     TRACEBACK + "RuntimeError: [../third_party/gloo/pair.cc:534] Connection closed by peer [10.0.0.3]:4711",
     FailureCause.PEER_LOST, "lost the connection to another learner: Connection closed by peer [10.0.0.3]"),
    ("NCCL without its peer", 134, "[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
     FailureCause.PEER_LOST, "lost the connection to another learner: Watchdog caught collective operation timeout"),
    ("an exception of its own", 1, TRACEBACK + "app.Diverged: loss is NaN", FailureCause.EXCEPTION,
     "failed with app.Diverged: loss is NaN"),
    ("a rank's exception", 1, "".join(f"[rank1]: {line}\n" for line in (TRACEBACK + "KeyError: 'lr'").split("\n")),
     FailureCause.EXCEPTION, "failed with KeyError: 'lr'"),
    ("an exception behind torchrun", 1, TRACEBACK + "ValueError: no shard\n" + TRACEBACK
     + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n====", FailureCause.EXCEPTION,
     "failed with ValueError: no shard"),
    ("an exception group", 1, GROUP, FailureCause.EXCEPTION, "failed with ValueError: leaf"),
    ("a program that cannot be compiled", 1,
     '  File "/job/train.py", line 3\n    x = (\n        ^\nSyntaxError: \'(\' was never closed',
     FailureCause.EXCEPTION, "failed with SyntaxError: '(' was never closed"),
    ("wrong indentation", 1,
     '  File "/job/train.py", line 4\n    print(1)\n    ^\nIndentationError: expected an indented block after \'if\'',
     FailureCause.EXCEPTION, "failed with IndentationError: expected an indented block after 'if'"),
    ("a module as the program", 1, "/job/env/bin/python3: No module named torchrun", FailureCause.IMPORT_ERROR,
     "could not import the module torchrun"),
    ("a module of a missing package as the program", 1,
     "python: Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named 'a')",
     FailureCause.IMPORT_ERROR, "could not import the module a.b"),
    ("a missing script (dash)", 2, "sh: 0: cannot open train.sh: No such file", FailureCause.MISSING_FILE,
     "could not find the file train.sh"),
    ("a missing script (bash)", 127, "bash: train.sh: No such file or directory", FailureCause.MISSING_FILE,
     "could not find the file train.sh"),
    ("a missing shared library", 127,
     "./a.out: error while loading shared libraries: libx.so.1: cannot open shared object file: No such file",
     FailureCause.MISSING_FILE, "could not load the shared library libx.so.1"),
    ("a missing file with an apostrophe", 1,
     TRACEBACK + 'FileNotFoundError: [Errno 2] No such file or directory: "it\'s.csv"', FailureCause.MISSING_FILE,
     "could not find the file it's.csv"),
    ("a crash in native code", 139, "step 3\nFatal Python error: Segmentation fault\n", FailureCause.SIGNAL,
     "crashed on an invalid memory access (SIGSEGV, exit code 139)"),
]  # fmt: skip


def numbered(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.splitlines(), start=101))


@pytest.mark.parametrize(
    ("code", "text", "cause", "did"), [one[1:] for one in SAID], ids=[one[0] for one in SAID]
)
def test_a_log_that_names_the_cause_is_quoted_with_its_line(
    code: int, text: str, cause: FailureCause, did: str
) -> None:
    found = diagnose(code, [(1, "epoch 1"), *numbered(text + "\nlater: a warning")], learners=2)
    assert (found.cause, found.did) == (cause, did)
    assert found.said
    assert found.line is not None
    assert found.remedy or cause is FailureCause.SIGNAL
    assert f"(log line {found.line})" in found.sentence(1)


@pytest.mark.parametrize(
    ("code", "text", "sentence"),
    [
        (3, "epoch 1\nbye\n\n", 'Learner 1 exited with code 3 for a reason that the platform does not recognize.'
         ' Its log ends with "bye".'),
        (1, "cat: x.csv: No such file or directory", "Learner 1 exited with code 1 for a reason that the platform does"
         ' not recognize. Its log ends with "cat: x.csv: No such file or directory".'),
        (127, "bye", "Learner 1 exited with code 127, a shell's code for a command that it did not find. Check its"
         " spelling, and that the job's environment has it."),
        (3, "", "Learner 1 exited with code 3; it printed nothing."),
        (137, "epoch 1", "Learner 1 was killed (SIGKILL, exit code 137). Its own memory was not reported as the"
         " cause; often the node runs out of memory."),
        (143, "", "Learner 1 was terminated (SIGTERM, exit code 143)."),
        (166, "", "Learner 1 was ended by a signal (signal 38, exit code 166)."),
    ],
)  # fmt: skip
def test_what_the_log_does_not_say_is_not_guessed(code: int, text: str, sentence: str) -> None:
    assert diagnose(code, numbered(text)).sentence(1) == sentence


def test_an_error_that_the_program_survived_is_not_the_cause() -> None:
    """It was logged and handled; what ended the program came later, or is unknown."""
    handled = "ValueError: a bad record was skipped\n"
    assert diagnose(1, numbered(handled + "bye")).cause is FailureCause.UNKNOWN
    missing = TRACEBACK + "FileNotFoundError: [Errno 2] No such file or directory: 'cache'\nretrying\n"
    assert "KeyError" in diagnose(1, numbered(missing + TRACEBACK + "KeyError: 'x'")).did
    assert diagnose(1, numbered("sh: 1: nproc: not found\nbye")).cause is FailureCause.UNKNOWN


STEPS = "step ok\n" * 100


@pytest.mark.parametrize(
    ("code", "text", "cause"),
    [
        (2, "g++ -c foo.cpp\nfoo.cpp:12:5: error: expected ';' before 'int'\nmake: *** [Makefile:3: foo.o] Error 1",
         FailureCause.UNKNOWN),
        (2, "foo.cpp:3:1: error: no x\n    3 | x\nfoo.cpp:12:5: error: no y\nmake: *** [Makefile:3: foo.o] Error 1",
         FailureCause.UNKNOWN),
        (2, 'kernel.cu(3): error: identifier "x" is undefined\nmake: *** [Makefile:3: foo.o] Error 2',
         FailureCause.UNKNOWN),
        (2, "main.cpp:3:7: warning: a\n    3 |   a[3]\n      |   ^~\ncollect2: error: ld returned 1 exit status\n"
         "make: *** [Makefile:3: a.out] Error 1", FailureCause.UNKNOWN),
        (2, "ld.lld: error: undefined symbol: x\nmake: *** [Makefile:3: a.out] Error 1", FailureCause.UNKNOWN),
        (137, f"step 5: CUDA out of memory. Tried to allocate 2.00 GiB. Retrying with batch 4\n{STEPS}",
         FailureCause.SIGNAL),
        (137, TRACEBACK + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\nsmaller\n" + STEPS,
         FailureCause.SIGNAL),
        (1, f"caught: CUDA out of memory. Tried to allocate 2.00 GiB\n{STEPS}", FailureCause.UNKNOWN),
        (137, "CUDA out of memory. Tried to allocate 2.00 GiB: retrying with batch 4\nstep ok", FailureCause.SIGNAL),
        (139, f"Connection reset by peer\n{STEPS}", FailureCause.SIGNAL),
        (3, f"WARNING Connection reset by peer (retry 1 of 5)\n{STEPS}fatal: the loss is not finite",
         FailureCause.UNKNOWN),
        (3, "Connection reset by peer (retry 1 of 5)\nfatal: the loss is not finite", FailureCause.UNKNOWN),
        (127, f"sh: 1: nvidia-smi: not found\n{STEPS}", FailureCause.COMMAND_NOT_FOUND),
    ],
)  # fmt: skip
def test_what_looks_like_a_cause_is_none_where_the_program_went_on(
    code: int, text: str, cause: FailureCause
) -> None:
    found = diagnose(code, numbered(text), learners=2)
    assert found.cause is cause
    assert not found.said


@pytest.mark.parametrize(
    ("code", "text", "cause"),
    [
        (1, TRACEBACK + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n" + STEPS,
         FailureCause.GPU_OUT_OF_MEMORY),
        (1, TRACEBACK + "torch.distributed.DistBackendError: NCCL error in: x.cpp:7\nncclRemoteError: A call\n" + STEPS,
         FailureCause.PEER_LOST),
        (134, "[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\n"
         + "".join(f"frame #{n}: start_thread + 0x1 (0x2 in libc.so)\n" for n in range(60)), FailureCause.PEER_LOST),
        (1, "OOM when allocating tensor with shape[64,3]; on GPU\n"
         + TRACEBACK.replace("    main()\n", "    main()\n" * 40)
         + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n" + "=" * 60,
         FailureCause.GPU_OUT_OF_MEMORY),
        (2, "".join(f"                [--option-{n} N]\n" for n in range(300)) + "train.py: error: no such: --foo",
         FailureCause.BAD_ARGUMENTS),
        (2, "Usage: train.py [-h]\n\ntrain.py: error: no such: --foo", FailureCause.BAD_ARGUMENTS),
    ],
)  # fmt: skip
def test_a_cause_is_found_before_what_is_dumped_after_it(code: int, text: str, cause: FailureCause) -> None:
    found = diagnose(code, numbered(text), learners=2)
    assert found.cause is cause
    assert found.said


def test_a_syntax_error_that_was_only_printed_is_not_the_cause() -> None:
    assert diagnose(1, numbered("SyntaxError: of a file under test\nbye")).cause is FailureCause.UNKNOWN


@pytest.mark.parametrize(
    ("learners", "text", "cause"),
    [
        (1, "ConnectionResetError: [Errno 104] Connection reset by peer", FailureCause.EXCEPTION),
        (2, "ConnectionResetError: [Errno 104] Connection reset by peer", FailureCause.PEER_LOST),
        (2, "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset"
         " by peer'))", FailureCause.EXCEPTION),
    ],
)  # fmt: skip
def test_a_lost_connection_is_to_a_learner_only_where_there_is_another(
    learners: int, text: str, cause: FailureCause
) -> None:
    """A job of one learner that lost a download got the advice to look at the logs of the others."""
    assert diagnose(1, numbered(TRACEBACK + text), learners=learners).cause is cause


def test_a_hostile_line_is_shortened_and_loses_its_control_characters() -> None:
    found = diagnose(1, numbered(TRACEBACK + "ValueError: \x07\u202eabc" + "x" * 5000))
    assert "\x07" not in found.did
    assert "\u202e" not in found.did
    assert len(found.did) < 250
