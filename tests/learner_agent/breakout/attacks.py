"""A program that tries to break out, as a job would. It writes one JSON object: what it tried, and why that failed.

Run with `TARGETS` in the environment. Each function is one attempt, and succeeds if it returns. Only what the test made
is attacked. Standard library only: it runs with any Python.
"""

# The calls that an attacker makes.
# ruff: noqa: PTH101, PTH108, PTH115, PTH208
import ctypes
import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

T = json.loads(os.environ["TARGETS"])
DATA, OTHER, OWN, VICTIM = Path(T["data"]), Path(T["other"]), Path(T["own"]), T["victim"]
LAUNCHER = os.getppid()
X86 = os.uname().machine == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def call(number, *words):
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# Files


def read_secret_key():
    (DATA / "secret_key").read_text()


def read_password_of_the_database():
    (DATA / "keys" / "postgres").read_text()


def read_code_of_another_job():
    (OTHER / "code" / "train.py").read_text()


def read_log_of_another_job():
    (OTHER / "state" / "log").read_text()


def list_data_folder():
    os.listdir(DATA)


def list_jobs():
    os.listdir(DATA / "nodes")


def list_home_of_the_user():
    os.listdir(T["home"])


def append_to_secret_key():
    with open(DATA / "secret_key", "a") as file:
        file.write("x")


def truncate_log_of_another_job():
    os.truncate(OTHER / "state" / "log", 1)


def make_file_in_another_job():
    (OTHER / "state" / "exit").write_text("{}")


def make_folder_in_data():
    (DATA / "mine").mkdir()


def make_fifo_in_another_job():
    os.mkfifo(OTHER / "state" / "fifo")


def make_link_in_another_job():
    (OTHER / "state" / "link").symlink_to("/")


def delete_file_of_another_job():
    (OTHER / "state" / "delete_me").unlink()


def take_file_of_another_job():
    (OTHER / "state" / "take_me").rename(OWN / "code" / "taken")


def give_file_to_another_job():
    (OWN / "code" / "gift").write_text("x")
    (OWN / "code" / "gift").rename(OTHER / "code" / "gift")


def hard_link_to_secret_key():
    os.link(DATA / "secret_key", OWN / "code" / "hard")
    (OWN / "code" / "hard").read_text()


def soft_link_to_secret_key():
    (OWN / "code" / "soft").symlink_to(DATA / "secret_key")
    (OWN / "code" / "soft").read_text()


def folder_link_to_another_job():
    (OWN / "results" / "other").symlink_to(OTHER)
    os.listdir(OWN / "results" / "other" / "code")


def read_through_root_of_proc():
    Path("/proc/self/root", str(DATA)[1:], "secret_key").read_text()


def read_through_dots():
    Path(OWN, "code", "..", "..", OTHER.name, "code", "train.py").read_text()


def read_through_descriptor_of_a_folder():
    folder = os.open(DATA, os.O_PATH | os.O_DIRECTORY)
    os.read(os.open("secret_key", os.O_RDONLY, dir_fd=folder), 10)


def read_in_a_child():
    program = "import sys; open(sys.argv[1]).read()"
    command = [sys.executable, "-c", program, str(DATA / "secret_key")]
    if subprocess.run(command, stderr=subprocess.DEVNULL, start_new_session=True, check=False).returncode:
        raise PermissionError("the child could not")


def run_program_of_another_job():
    subprocess.run([str(OTHER / "code" / "tool")], check=True)


def change_mode_of_secret_key():
    os.chmod(DATA / "secret_key", 0o640)


def change_mode_of_another_job():
    os.chmod(OTHER / "code", 0o711)


def change_times_of_another_job():
    os.utime(OTHER / "code" / "train.py", (1, 1))


def change_attributes_of_another_job():
    os.setxattr(OTHER / "code" / "train.py", "user.x", b"1")


def write_into_a_data_set():
    (DATA / "datasets" / "set" / "rows.csv").write_text("wrong")


def write_into_a_data_set_by_its_link():
    (OWN / "data" / "set" / "rows.csv").write_text("wrong")


def delete_from_a_data_set():
    (DATA / "datasets" / "set" / "spare.csv").unlink()


def write_into_the_agent():
    with open(T["agent"] + "/training.py", "a") as file:
        file.write("# changed\n")


def write_log_of_own_launcher():
    (OWN / "launcher.log").write_text("all is well")


def replace_own_spool():
    (OWN / "state" / "log").rename(OWN / "log.old")
    (OWN / "log.old").rename(OWN / "state" / "log")


def put_a_socket_of_ones_own_in_the_platforms_place():
    os.unlink(T["socket"])
    socket.socket(socket.AF_UNIX).bind(T["socket"])


# Processes


def look_for_a_process():
    os.kill(VICTIM, 0)


def signal_a_process():
    os.kill(VICTIM, signal.SIGCONT)


def signal_a_group():
    os.killpg(VICTIM, signal.SIGCONT)


def signal_by_pidfd():
    call(424, call(434, VICTIM, 0), int(signal.SIGCONT), None, 0)


def signal_the_launcher():
    os.kill(LAUNCHER, signal.SIGCONT)


def trace_a_process():
    seize, detach = 0x4206, 17
    checked(libc.ptrace(seize, VICTIM, None, None))
    libc.ptrace(detach, VICTIM, None, None)


def trace_the_launcher():
    seize, detach = 0x4206, 17
    checked(libc.ptrace(seize, LAUNCHER, None, None))
    libc.ptrace(detach, LAUNCHER, None, None)


def read_environment():
    assert b"LUTHIER_SECRET=" in Path(f"/proc/{VICTIM}/environ").read_bytes()


def read_environment_of_the_launcher():
    Path(f"/proc/{LAUNCHER}/environ").read_bytes()


def read_memory():
    with open(f"/proc/{VICTIM}/mem", "rb") as memory:
        memory.seek(T["address"])
        assert memory.read(6) == b"secret"


def write_memory():
    with open(f"/proc/{VICTIM}/mem", "r+b", buffering=0) as memory:
        memory.seek(T["address"])
        memory.write(b"secret")


def read_memory_by_call():
    buffer = ctypes.create_string_buffer(6)
    local = struct.pack("QQ", ctypes.addressof(buffer), 6)
    remote = struct.pack("QQ", T["address"], 6)
    call(310 if os.uname().machine == "x86_64" else 270, VICTIM, local, 1, remote, 1, 0)
    assert buffer.raw == b"secret"


def read_map_of_memory():
    assert Path(f"/proc/{VICTIM}/maps").read_text()


def see_an_open_file():
    os.readlink(f"/proc/{VICTIM}/fd/{T['descriptor']}")


def open_an_open_file():
    with open(f"/proc/{VICTIM}/fd/{T['descriptor']}") as file:
        file.read()


def take_a_descriptor():
    call(438, call(434, VICTIM, 0), T["descriptor"], 0)


def read_in_the_folder_of_a_process():
    Path(f"/proc/{VICTIM}/cwd/secret_key").read_text()


def read_in_the_root_of_a_process():
    Path(f"/proc/{VICTIM}/root", str(DATA)[1:], "secret_key").read_text()


def limit_another_process():
    resource.prlimit(VICTIM, resource.RLIMIT_CPU, (10_000, resource.RLIM_INFINITY))


def lower_the_priority_of_another_process():
    before = os.getpriority(os.PRIO_PROCESS, VICTIM)
    os.setpriority(os.PRIO_PROCESS, VICTIM, before + 1)
    assert os.getpriority(os.PRIO_PROCESS, VICTIM) == before + 1


def lower_the_priority_of_a_group():
    os.setpriority(os.PRIO_PGRP, VICTIM, os.getpriority(os.PRIO_PGRP, VICTIM) + 1)


def lower_the_priority_of_reads_and_writes():
    idle = 3 << 13
    call(251 if X86 else 30, 1, VICTIM, idle)
    assert call(252 if X86 else 31, 1, VICTIM) == idle


def bind_another_process_to_one_core():
    cores = os.sched_getaffinity(VICTIM)
    fewer = {min(cores)}
    assert fewer != cores, "this machine has one core"
    os.sched_setaffinity(VICTIM, fewer)
    changed = os.sched_getaffinity(VICTIM)
    os.sched_setaffinity(VICTIM, cores)
    assert changed == fewer


def make_another_process_run_as_a_batch():
    os.sched_setscheduler(VICTIM, os.SCHED_BATCH, os.sched_param(0))
    assert os.sched_getscheduler(VICTIM) == os.SCHED_BATCH


def make_another_process_idle_by_attributes():
    attributes = struct.pack("IIQiIQQQ", 48, 3, 0, 19, 0, 0, 0, 0)
    before = os.getpriority(os.PRIO_PROCESS, VICTIM)
    call(314 if X86 else 274, VICTIM, attributes, 0)
    assert os.getpriority(os.PRIO_PROCESS, VICTIM) == 19 != before


def give_another_process_a_parameter():
    try:
        os.sched_setparam(VICTIM, os.sched_param(1))
    except OSError as error:
        if error.errno == errno.EINVAL:
            return  # the kernel looked at it: no process without real-time priority has this one
        raise
    raise AssertionError("answered as done")


def make_another_process_the_first_to_be_killed():
    Path(f"/proc/{VICTIM}/oom_score_adj").write_text("999")


def enter_the_namespaces_of_a_process():
    libc.setns.restype = ctypes.c_int
    handle = os.open(f"/proc/{VICTIM}/ns/uts", os.O_RDONLY)
    checked(libc.setns(handle, 0))


# What a file that others use shows of them, and does to them


def watch_the_names_in_the_folder_of_another_job():
    handle = checked(libc.inotify_init1(0))
    checked(libc.inotify_add_watch(handle, os.fsencode(OTHER / "state"), 0xFFF))


def watch_the_names_by_fanotify():
    handle = call(300 if X86 else 262, 0x600, 0)  # with names
    checked(libc.fanotify_mark(handle, 1, ctypes.c_uint64(0x100), -100, os.fsencode(OTHER / "state")))


def delay_the_next_who_opens_a_file():
    handle = os.open(DATA / "datasets" / "set" / "rows.csv", os.O_RDONLY)
    fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def hold_the_lock_of_a_runtimes_builder():
    with open(T["lock"]) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def watch_a_folder_by_its_descriptor():
    handle = os.open(DATA / "datasets" / "set", os.O_RDONLY)
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    fcntl.fcntl(handle, fcntl.F_NOTIFY, fcntl.DN_CREATE)


# Sockets, terminals and shared memory


def connect_to_abstract_socket():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + T["abstract"])


def send_to_abstract_socket():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.sendto(b"x", "\0" + T["abstract"] + "-datagrams")


def have_read(path):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        assert client.recv(100).startswith(b"key")


def have_a_service_in_run_read_the_secret_key():
    have_read(T["services"]["run"])


def have_a_service_in_var_read_the_secret_key():
    have_read(T["services"]["var"])


def have_a_service_in_tmp_read_the_secret_key():
    have_read(T["services"]["tmp"])


def have_a_service_at_home_read_the_secret_key():
    have_read(T["services"]["home"])


def reach_a_service_from_the_folder_that_the_program_starts_in():
    have_read(os.path.relpath("/") + T["services"]["tmp"])


def reach_a_service_through_the_root_of_a_process():
    have_read(f"/proc/{VICTIM}/root" + T["services"]["run"])


def find_a_service_by_listing():
    assert Path(T["services"]["run"]).parent.name in os.listdir("/run")


def open_a_terminal():
    os.open(T["terminal"], os.O_RDWR | os.O_NOCTTY)


def read_shared_memory():
    Path("/dev/shm", T["shared"]).read_bytes()


def list_shared_memory():
    assert T["shared"] in os.listdir("/dev/shm")


def remove_shared_memory():
    Path("/dev/shm", T["shared"] + "-spare").unlink()


def attach_system_v_memory():
    libc.shmat.restype = ctypes.c_void_p
    identity = checked(libc.shmget(T["key"], 0, 0o600))
    address = libc.shmat(identity, None, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "shmat")
    libc.shmdt(ctypes.c_void_p(address))


def read_system_v_queue():
    checked(libc.msgget(T["key"], 0))


# The kernel


def new_user_namespace():
    checked(libc.unshare(0x10000000))


def new_mount_namespace():
    checked(libc.unshare(0x00020000))


def new_namespace_by_another_program():
    if shutil.which("unshare") is None:
        raise FileNotFoundError("unshare")
    subprocess.run(["unshare", "--user", "--map-root-user", "true"], check=True, stderr=subprocess.DEVNULL)


def mount_over_a_folder():
    target = OWN / "results"
    checked(libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", 0, None))
    checked(libc.umount2(os.fsencode(target), 2))


def change_the_root():
    child = os.fork()
    if child == 0:
        try:
            os.chroot(OWN)
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise PermissionError("chroot")


def become_another_user():
    child = os.fork()
    if child == 0:
        try:
            os.setuid(12_345)
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise PermissionError("setuid")


def make_a_device():
    os.mknod(OWN / "code" / "device", 0o020600, os.makedev(1, 1))


def give_a_file_away():
    os.chown(DATA / "secret_key", 12_345, 12_345)
    os.chown(DATA / "secret_key", os.getuid(), os.getgid())


def read_shadow():
    Path("/etc/shadow").read_text()


def open_by_handle():
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    checked(libc.name_to_handle_at(-100, os.fsencode(DATA / "secret_key"), handle, ctypes.byref(mount), 0))
    os.read(checked(libc.open_by_handle_at(os.open(OWN, os.O_RDONLY), handle, os.O_RDONLY)), 4)


def add_a_key_for_all_jobs():
    call(248 if X86 else 217, b"user", b"luthier-test", b"x", 1, -4)


ROOT_ONLY = {
    mount_over_a_folder, change_the_root, become_another_user, make_a_device, give_a_file_away, read_shadow,
    open_by_handle, new_mount_namespace, enter_the_namespaces_of_a_process, have_a_service_at_home_read_the_secret_key,
}  # fmt: skip
"""What the kernel refuses to any other user in any case; and the other one has no home folder."""

TRIES = [
    value
    for value in list(globals().values())
    if getattr(value, "__module__", "") == "__main__" and callable(value)
]


def main():
    found = {}
    for attempt in TRIES:
        if attempt in (call, checked, have_read, main):
            continue
        child = os.fork()  # what changes the process itself must not change the next attempt
        if child == 0:
            text = "succeeded"
            try:
                attempt()
            except (OSError, AssertionError, KeyError, subprocess.CalledProcessError) as error:
                text = f"{type(error).__name__}: {error}"
            except BaseException as error:
                text = f"broken: {error!r}"
            Path(OWN, "results", f"{attempt.__name__}.answer").write_text(text)
            os._exit(0)
        os.waitpid(child, 0)
        answer = Path(OWN, "results", f"{attempt.__name__}.answer")
        found[attempt.__name__] = [answer.read_text() if answer.exists() else "died", attempt in ROOT_ONLY]
    Path(OWN, "results", "answers.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
