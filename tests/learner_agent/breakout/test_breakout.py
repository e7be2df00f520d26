"""A program that breaks out in more than 70 ways: each fails in the sandbox, as root and as an ordinary user.

Without the sandbox each succeeds: so what is tried here is a real attack, on a stage that could be attacked.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.clusters.base import LearnerSpec
from gpu_scheduler.clusters.local import environment, processes
from gpu_scheduler.clusters.local.builder import lock_of
from gpu_scheduler.clusters.local.isolation import (
    Mode,
    Sandboxing,
    make_cuda_device,
    package_folders,
    probe,
    wrong_paths,
)
from gpu_scheduler.clusters.local.memory_limits import MIB, shared_memory_beside
from learner_agent.sandbox import entry, hiding
from tests.gpu_scheduler.clusters.harness import launch
from tests.gpu_scheduler.clusters.node_daemon import wait_for
from tests.learner_agent.breakout.stage import AGENT, HERE, OTHER_USER, ROOT, Stage, stage

__all__ = ["stage"]

ATTEMPTS_MIN = 70
UNCHANGED = ("secret_key", "datasets/set/rows.csv", "nodes/node-a/job-b-1-0/code/train.py")
LOCKED = Sandboxing(landlock=7, namespaces=True, why_not="")
WITHOUT_NAMESPACES = Sandboxing(landlock=7, namespaces=False, why_not="forbidden here")
OPEN_WITHOUT_NAMESPACES = {
    "change_mode_of_secret_key", "change_mode_of_another_job", "change_times_of_another_job",
    "change_attributes_of_another_job", "read_shared_memory", "remove_shared_memory",
    "have_a_service_in_run_read_the_secret_key", "have_a_service_in_var_read_the_secret_key",
    "have_a_service_in_tmp_read_the_secret_key", "reach_a_service_from_the_folder_that_the_program_starts_in",
}  # fmt: skip
"""Shared memory and sockets for one who knows the name, which cannot be listed."""
AT_HOME = "have_a_service_at_home_read_the_secret_key"


def attack(stage: Stage, sandboxing: Sandboxing) -> dict[str, tuple[str, bool]]:
    """What became of each attempt, and whether it needs root."""
    with stage.victim() as place:
        targets = place | {
            "data": str(stage.data), "other": str(stage.other), "own": str(stage.folders.root),
            "agent": str(stage.agent), "home": str(stage.root / "home"), "socket": str(stage.root / "run" / "socket"),
            "lock": str(lock_of(stage.runtime)),
        }  # fmt: skip
        env = {"TARGETS": json.dumps(targets)}
        said = stage.launch(env, sandboxing)
    assert (stage.folders.root / "results" / "answers.json").exists(), said
    answers = json.loads((stage.folders.root / "results" / "answers.json").read_text())
    assert len(answers) >= ATTEMPTS_MIN
    assert not [name for name, (text, _) in answers.items() if text.startswith(("broken", "died"))], answers
    return {name: (text, needs_root) for name, (text, needs_root) in answers.items()}


def test_nothing_succeeds_in_the_sandbox(stage: Stage) -> None:
    before = {name: (stage.data / name).read_bytes() for name in UNCHANGED}
    found = attack(stage, LOCKED)
    assert [name for name, (text, _) in found.items() if text == "succeeded"] == []
    assert {name: (stage.data / name).read_bytes() for name in UNCHANGED} == before
    assert stat.S_IMODE((stage.data / "secret_key").stat().st_mode) == 0o644


def test_without_the_sandbox_each_attempt_succeeds(stage: Stage) -> None:
    found = attack(stage, Sandboxing())
    is_root = stage.user == "root"
    failed = {
        name: text
        for name, (text, needs_root) in found.items()
        if text != "succeeded" and (is_root or not needs_root)
    }
    assert failed == {}


def test_without_namespaces_only_modes_and_known_names_of_shared_memory_and_sockets_are_open(
    stage: Stage,
) -> None:
    found = attack(stage, WITHOUT_NAMESPACES)
    is_open = OPEN_WITHOUT_NAMESPACES | ({AT_HOME} if "home" in stage.services() else set())
    assert {name for name, (text, _) in found.items() if text == "succeeded"} == is_open
    report = WITHOUT_NAMESPACES.report()
    assert not report.holds
    assert "modes of the platform's files" in report.text
    assert "have services of its user" in report.text


@pytest.mark.parametrize(
    ("sandboxing", "is_open"),
    [(LOCKED, set()), (WITHOUT_NAMESPACES, OPEN_WITHOUT_NAMESPACES)],
    ids=["namespaces", "no-namespaces"],
)
def test_a_granted_folder_around_the_data_folder_opens_nothing_of_it(
    stage: Stage, sandboxing: Sandboxing, is_open: set[str]
) -> None:
    """As with a checkout in /opt: the folder above the data folder is granted, as /opt is."""
    private = (stage.data, stage.root / "home", stage.root / "run")
    found = attack(stage, replace(sandboxing, reads=(stage.root,), private=private))
    assert {name for name, (text, _) in found.items() if text == "succeeded"} - {AT_HOME} == is_open
    assert (found.get(AT_HOME, ("",))[0] == "succeeded") == (bool(is_open) and "home" in stage.services())


READS = """\
import sys
found = []
for path in sys.argv[1:]:
    try:
        found.append(open(path).read())
    except OSError as error:
        found.append(error.strerror)
print(", ".join(found) + ".")
"""


@pytest.mark.parametrize("sandboxing", [LOCKED, WITHOUT_NAMESPACES], ids=["namespaces", "no-namespaces"])
def test_beside_what_is_private_a_granted_folder_is_read(stage: Stage, sandboxing: Sandboxing) -> None:
    """A folder store, a key file and what is beside them, in a folder that the system grants."""
    around = stage.root / "opt"
    names = ("tool/file", "blobs/file", "keys/secret", "keys/public", "blobs-of-others/file")
    for name in names:
        (around / name).parent.mkdir(parents=True, exist_ok=True)
        (around / name).write_text(f"of {name}")
    (stage.folders.code / "reads.py").write_text(READS)
    private = (stage.data, around / "blobs", around / "keys" / "secret")
    said = stage.launch(
        {},
        replace(sandboxing, reads=(around,), private=private),
        "reads.py",
        *(str(around / name) for name in names),
    )
    answer = "No such file or directory" if sandboxing.namespaces else "Permission denied"
    expected = ["of tool/file", answer, answer, "of keys/public", "of blobs-of-others/file"]
    assert f"{', '.join(expected)}." in said


KEEPS = """\
import os, pathlib, socket, sys
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        assert client.recv(100) == b"key"
    assert pathlib.Path(os.path.dirname(path), "file").read_text() == "kept"
    try:
        pathlib.Path(os.path.dirname(path), "mine").touch()
        sys.exit("it can write beside it")
    except OSError:
        pass
print("all are kept")
"""


def test_what_the_operator_names_in_a_covered_folder_is_kept_under_each_of_its_names(stage: Stage) -> None:
    services = stage.services()
    (stage.folders.code / "keeps.py").write_text(KEEPS)
    folders = {name: Path(socket).parent for name, socket in services.items()}
    for folder in folders.values():
        (folder / "file").write_text("kept")
        (folder / "file").chmod(0o644)
    by_link = stage.root / "link"  # below /tmp, to /var
    by_link.symlink_to(folders["var"].parent)
    named = [folders["run"], folders["tmp"], by_link / folders["var"].name]
    sandboxing = replace(LOCKED, reads=tuple(named))
    with stage.victim():
        said = stage.launch({}, sandboxing, "keeps.py", *(str(folder / "socket") for folder in named))
    assert "all are kept" in said, said


def test_of_a_covered_place_what_is_granted_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a place that is covered, what the granted paths lead to is left, and the links on the way to it."""
    place = tmp_path / "run"
    (place / "resolve").mkdir(parents=True)
    (place / "resolve" / "stub").touch()
    (place / "current").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "resolv.conf").symlink_to(place / "resolve" / "stub")
    places = [str(place)]
    granted = [str(tmp_path / "resolv.conf"), str(place / "resolve" / "stub"), str(place / "missing")]
    assert hiding.below(places, granted) == [str(place / "resolve" / "stub")]
    assert hiding.links(places, granted) == {str(place / "current"): str(tmp_path / "elsewhere")}
    monkeypatch.setattr(hiding, "FOLDERS", (str(place), str(place / "resolve"), "/nowhere"))
    home = os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir)
    assert set(hiding.folders([])) - {home} == {str(place)}
    assert str(place) not in hiding.folders([str(tmp_path)]), "the operator grants all of it"


def asked_name_services(user: str, own: Path) -> dict[str, object]:
    """Which services of names, and what of theirs, a program reaches in a /run that has them all."""
    script = HERE / "name_services.py"
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, str(script), user, str(own)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(AGENT.parent), "PATH": os.defpath}
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes services of others, in a /run of its own")
@pytest.mark.parametrize(
    ("user", "reached"), [("root", []), (OTHER_USER, ["systemd/resolve/io.systemd.Resolve"])]
)
def test_names_are_looked_up_and_no_service_of_root_or_process_1_is_reached(
    user: str, reached: list[str]
) -> None:
    with tempfile.TemporaryDirectory(prefix="breakout-") as own:
        found = asked_name_services(user, Path(own))
    assert found == {"reached": reached, "reads": True}


WORKS = """\
import ctypes, fcntl, multiprocessing, os, pathlib, socket, subprocess, sys, tempfile
from multiprocessing import shared_memory

def square(number):
    return number * number

if __name__ == "__main__":
    assert len(os.listdir("/proc/self/fd")) == 4, "nothing is inherited; the fourth is the listing's own"
    with multiprocessing.Pool(2) as pool:
        assert pool.map(square, range(4)) == [0, 1, 4, 9]
    block = shared_memory.SharedMemory(create=True, size=100)
    block.close()
    block.unlink()
    child = multiprocessing.Process(target=square, args=(1,))
    child.start()
    child.join()
    assert child.exitcode == 0
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    child.terminate()
    assert child.wait() == -15
    assert subprocess.check_output("echo $((6 * 7)) | cat", shell=True) == b"42\\n"
    with tempfile.NamedTemporaryFile() as file:
        os.chmod(file.name, 0o600)
    assert pathlib.Path(os.environ["DATA_DIR"], "set", "rows.csv").read_text() == "1,2"
    for name in ("CHECKPOINT_DIR", "RESULT_DIR", "LOG_DIR", "JOB_STATE_DIR", "MODEL_DIR", "HOME", "TMPDIR"):
        pathlib.Path(os.environ[name], "mine").write_text("mine")
    pathlib.Path("program").write_text("#!/bin/sh\\nexit 0\\n")
    os.chmod("program", 0o755)
    subprocess.run(["./program"], check=True)
    with socket.create_connection(("127.0.0.1", int(os.environ["PORT"]))) as client:
        client.sendall(b"reached")
    assert "LUTHIER_SANDBOX" not in os.environ
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.nice(1)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    assert os.sched_getaffinity(0) == {min(cores)}
    me = os.getpid()
    os.sched_setaffinity(me, cores)
    assert os.sched_getaffinity(0) == {min(cores)}, "of what is named, in appearance only"
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.sched_setscheduler(me, os.SCHED_IDLE, os.sched_param(0))
    os.sched_setparam(me, os.sched_param(0))
    assert os.sched_getscheduler(0) == os.SCHED_BATCH
    os.setpriority(os.PRIO_PROCESS, me, 5)
    subprocess.run("set -e; renice -n 5 -p $$ >/dev/null; ionice -c 3 -p $$", shell=True, check=True)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before + 1
    with open("watched", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    print("all of it works")
"""


@pytest.mark.parametrize("sandboxing", [LOCKED, WITHOUT_NAMESPACES], ids=["namespaces", "no-namespaces"])
def test_what_programs_do_works_in_the_sandbox(stage: Stage, sandboxing: Sandboxing) -> None:
    (stage.folders.code / "works.py").write_text(WORKS)
    with socket.create_server(("127.0.0.1", 0)) as server:
        said = stage.launch({"PORT": str(server.getsockname()[1])}, sandboxing, "works.py")
    assert "all of it works" in said, said


FILLS = """\
import mmap, os, pathlib, time
own, results = pathlib.Path("/dev/shm"), pathlib.Path(os.environ["RESULT_DIR"])
(own / "first").write_bytes(bytes(6 << 20))
said, ask = results / "said", results / "ask"
def meet(text):
    said.write_text(text)
    while not ask.exists():
        time.sleep(0.02)
    ask.unlink()
meet("holds 6")
with open(own / "first", "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
    sum(mapped[::4096])
meet("maps 6")
try:
    (own / "second").write_bytes(bytes(20 << 20))
    said.write_text("no limit")
except OSError as error:
    meet(error.strerror)
"""


def test_shared_memory_is_limited_and_counted_with_a_learners_memory(stage: Stage) -> None:
    """It is memory of the machine, whether a process maps it or not."""
    (stage.folders.code / "fills.py").write_text(FILLS)
    said, ask = stage.folders.root / "results" / "said", stage.folders.root / "results" / "ask"

    def held(text: str) -> float:
        wait_for(lambda: said.exists() and said.read_text() == text)
        pids = processes.descendants(launcher.pid, processes.table())
        found = shared_memory_beside(launcher.pid, pids) / MIB
        said.unlink()
        ask.touch()
        return found

    with stage.launching({}, LOCKED, "fills.py", memory_mib=16) as launcher:
        assert held("holds 6") == 6
        assert held("maps 6") < 1, "it is resident memory of the program now"
        assert 9 <= held("No space left on device") <= 10, "16, of which 6 are mapped"
        assert launcher.wait(60) == 0
    assert shared_memory_beside(launcher.pid, []) == 0
    assert shared_memory_beside(os.getpid(), []) == 0, "the machine's is no program's"


REFUSED = """\
import ctypes, errno, fcntl, os
folder = os.open(".", os.O_RDONLY)
libc = ctypes.CDLL(None, use_errno=True)
answers = []
for call in (
    *(lambda command=command: libc.fcntl(folder, command, 0) for command in (1024, 1026, 1040)),
    *(lambda which=which: libc.setpriority(which, 0, 1) for which in (os.PRIO_PGRP, os.PRIO_USER)),
    libc.inotify_init,
    lambda: libc.inotify_init1(0),
):
    answers.append(errno.errorcode[ctypes.get_errno()] if call() < 0 else "done")
print(" ".join(answers))
"""
"""The commands are F_SETLEASE, F_NOTIFY and F_SETDELEG, which newer kernels have."""


def test_what_reaches_past_a_process_is_refused_to_it(stage: Stage) -> None:
    (stage.folders.code / "refused.py").write_text(REFUSED)
    assert "EPERM EPERM EPERM EPERM EPERM ENOSYS ENOSYS" in stage.launch({}, LOCKED, "refused.py")


def test_a_learners_pip_reads_the_packages_of_this_machine_that_it_is_led_to(tmp_path: Path) -> None:
    data, index = tmp_path / "data", tmp_path / "an index"
    env = {
        "PIP_FIND_LINKS": f"/wheels https://there.example/x relative {data} {tmp_path} {data}/keys",
        "PIP_EXTRA_INDEX_URL": index.as_uri(),
        "PIP_INDEX_URL": "file:///home/me@there",
    }
    assert package_folders(env, [data]) == [Path("/wheels"), index], (
        "nothing of the data folder, and no withheld value"
    )


def test_git_does_without_the_machines_settings_in_the_sandbox(tmp_path: Path) -> None:
    def of(sandbox: str | None) -> dict[str, str]:
        folders = environment.Folders(tmp_path)
        return environment.of_launcher(
            launch("job-a-1", "runs"), 0, folders=folders, packages=[tmp_path], devices=[], ports=[1, 2], mark="m",
            sandbox=sandbox,
        )  # fmt: skip

    assert of("{}")["GIT_CONFIG_NOSYSTEM"] == "1"
    assert "GIT_CONFIG_NOSYSTEM" not in of(None)


def test_the_device_that_only_a_privileged_program_makes_is_made_before_any_confined_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-modprobe"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ntouch {tmp_path}/nvidia-uvm\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    make_cuda_device(tmp_path)
    assert not (tmp_path / "asked").exists(), "no driver, nothing to make"
    (tmp_path / "nvidiactl").touch()
    make_cuda_device(tmp_path)
    make_cuda_device(tmp_path)
    assert (tmp_path / "asked").read_text() == "-u -c 0\n"


OPENS = """\
import os, sys
found = []
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDWR))
        found.append("opened")
    except OSError as error:
        found.append(error.strerror)
open(os.environ["RESULT_DIR"] + "/found", "w").write(", ".join(found))
"""


@pytest.fixture
def gpu_files() -> Iterator[list[Path]]:
    """Two devices as those of GPUs are, which anyone may open."""
    paths = [Path(f"/dev/luthier-test-{os.getpid()}-{number}") for number in (0, 1)]
    try:
        for path in paths:
            os.mknod(path, stat.S_IFCHR, os.makedev(1, 5))
            path.chmod(0o666)
    except PermissionError:
        pytest.skip("no devices are made here")
    try:
        yield paths
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("sandboxing", "given", "answer"),
    [
        (LOCKED, (1,), "Permission denied, opened"),
        (LOCKED, (), "Permission denied, Permission denied"),
        (WITHOUT_NAMESPACES, (1,), "Permission denied, opened"),
        (Sandboxing(), (), "opened, opened"),
    ],
    ids=["one", "none", "one-no-namespaces", "no-sandbox"],
)
def test_a_learner_opens_the_devices_of_its_own_gpus_only(
    stage: Stage, gpu_files: list[Path], sandboxing: Sandboxing, given: tuple[int, ...], answer: str
) -> None:
    (stage.folders.code / "opens.py").write_text(OPENS)
    devices = [gpu_files[number] for number in given]
    with stage.launching({}, sandboxing, "opens.py", *map(str, gpu_files), devices=devices) as launcher:
        assert launcher.wait(60) == 0
    assert (stage.folders.root / "results" / "found").read_text() == answer


def test_no_pattern_of_what_every_program_uses_is_of_gpus() -> None:
    assert not [path for path in entry.DEVICES if any(name in path for name in ("*", "nvidia", "kfd", "dri"))]


FORKS = """\
import os, signal
children = []
def started(start):
    try:
        for number in range(200):
            start()
        return "no limit"
    except (OSError, RuntimeError) as error:
        return str(error)
def fork():
    children.append(os.fork())
    if not children[-1]:
        signal.pause()
said = started(fork)
number = len(children)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
with open(os.environ["RESULT_DIR"] + "/found", "w") as file:
    file.write("%d %s" % (number, said))
"""


def test_a_learner_has_so_many_processes_and_no_other_learners_count(stage: Stage) -> None:
    """Root's are limited by a control group only: the kernel exempts root from this limit."""
    (stage.folders.code / "forks.py").write_text(FORKS)
    others = [stage.run([stage.python, "-c", "import time; time.sleep(600)"], {}) for _ in range(40)]
    try:
        with stage.launching({}, LOCKED, "forks.py", most_processes=30) as launcher:
            assert launcher.wait(60) == 0
    finally:
        for other in others:
            other.kill()
            other.wait()
    number, _, said = (stage.folders.root / "results" / "found").read_text().partition(" ")
    if stage.user == ROOT:
        assert (int(number), said) == (200, "no limit")
    else:
        assert (int(number), said) == (28, "[Errno 11] Resource temporarily unavailable")


ASKS_A_DEVICE = """\
import fcntl, sys
from learner_agent.sandbox import landlock, privileges
privileges.gain_no_more()
rights = {"/": landlock.READ} | dict.fromkeys(sys.argv[1:], landlock.WRITE)
landlock.restrict(landlock.ruleset(rights, scoped=True))
print(len(fcntl.ioctl(open("/dev/urandom"), 0x80045200, bytes(4))))  # RNDGETENTCNT
"""


@pytest.mark.parametrize(("named", "ends_with"), [(["/dev/urandom"], "4\n"), ([], "")])
def test_a_device_that_the_operator_names_can_be_controlled(named: list[str], ends_with: str) -> None:
    command = [sys.executable, "-c", ASKS_A_DEVICE, *named]
    done = subprocess.run(command, cwd=AGENT.parent, capture_output=True, text=True, check=False)
    assert done.stdout == ends_with
    assert ("PermissionError" in done.stderr) == (not named), done.stderr


@pytest.mark.parametrize(
    ("sandboxing", "answer"), [(LOCKED, "No such file"), (WITHOUT_NAMESPACES, "Permission denied")]
)
def test_setup_commands_run_in_the_sandbox_too(stage: Stage, sandboxing: Sandboxing, answer: str) -> None:
    key = stage.data / "secret_key"
    said = stage.launch({"LUTHIER_SETUP": json.dumps([f"cat {key}"])}, sandboxing, "attacks.py")
    assert answer in said
    assert "setup command 1 of 1 exited with code 1" in said


NOWHERE = {"read": [], "write": [], "own": "/nowhere", "tmp": None, "namespaces": True}


@pytest.mark.parametrize("asked", ["{", "{}", json.dumps(NOWHERE)])
def test_a_sandbox_that_cannot_be_entered_starts_nothing(stage: Stage, asked: str) -> None:
    (stage.folders.code / "runs.py").write_text("print('it ran')")
    said = stage.launch({"LUTHIER_SANDBOX": asked}, Sandboxing(), "runs.py")
    assert "sandbox_failed: nothing runs without it: " in said
    assert "it ran" not in said


def test_the_probe_tries_the_sandbox() -> None:
    found = probe([sys.executable, str(AGENT)], Mode.AUTO)
    assert found.landlock >= 6
    assert found.report().text.startswith("programs are ")


@pytest.mark.parametrize(
    "program",
    [
        "",
        "raise SystemExit(1)",
        "print('{}')",
        "print('[1]')",
        "print('confined')",
        "import os; os.kill(os.getpid(), 9)",
    ],
)
def test_a_probe_that_does_not_say_yes_means_none(program: str) -> None:
    found = probe([sys.executable, "-c", program], Mode.AUTO)
    assert (found.landlock, found.report().holds) == (0, False)
    assert found.why_not


def test_a_probe_that_cannot_run_means_none(tmp_path: Path) -> None:
    assert probe([str(tmp_path / "missing")], Mode.AUTO).landlock == 0


def test_paths_that_would_open_the_data_folder_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    inside, around, beside = data / "keys", tmp_path, tmp_path / "beside"
    (tmp_path / "link").symlink_to(tmp_path)
    blobs = tmp_path / "blobs"
    found = wrong_paths("--program-reads", [inside, around, beside, tmp_path / "link", blobs], [data, blobs])
    assert [(words[1], words[3]) for words in (problem.split(" ") for problem in found)] == [
        (str(inside), f"{data},"),
        *((str(path), f"{kept},") for path in (around, tmp_path / "link") for kept in (data, blobs)),
        (str(blobs), f"{blobs},"),
    ]


def test_the_variable_is_the_one_that_the_node_daemon_sets() -> None:
    assert entry.VARIABLE == environment.SANDBOX


def test_the_launcher_loads_nothing_that_the_job_names(tmp_path: Path) -> None:
    """It would run before the sandbox is entered."""
    given = {
        "LD_PRELOAD": "/x.so", "LD_AUDIT": "/x.so", "GCONV_PATH": "/x", "PYTHONHOME": "/x", "OPENSSL_CONF": "/x",
        "LR": "1",
    }  # fmt: skip
    learner = LearnerSpec(rank=0, node="node-a", env=given, secret="s")
    spec = replace(launch("job-x-1", "runs"), learners=(learner,), secrets={"LD_BIND_NOW": "secret-value"})
    found = environment.of_launcher(
        spec, 0, folders=environment.Folders(tmp_path), packages=[tmp_path], devices=[], ports=[1, 2], mark="m",
        sandbox="{}",
    )  # fmt: skip
    later = json.loads(found[environment.PROGRAM_ENV])
    assert later == {name: value for name, value in given.items() if name != "LR"} | spec.secrets
    assert not later.keys() & found.keys()
    assert found["LR"] == "1"


def test_the_program_gets_what_was_kept_from_the_launcher(stage: Stage) -> None:
    (stage.folders.code / "shows.py").write_text(
        "import os; print(os.environ['TZDIR'] + os.environ['LD_PRELOAD'] + '.')"
    )
    later = {entry.PROGRAM_ENV: json.dumps({"TZDIR": "/kept", "LD_PRELOAD": ""})}
    assert "/kept." in stage.launch(later, LOCKED, "shows.py")
