"""Services in a /run of its own: of names, of process 1, of root and of others. A program in the sandbox asks each.

Run as root in mounts of its own: `name_services.py USER OWN`. It prints whom the program reached, by path.
"""

# The calls that an attacker makes.
# ruff: noqa: PTH101, PTH103, PTH120
import ctypes
import json
import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path

from learner_agent.sandbox.entry import Sandbox

user, own = pwd.getpwnam(sys.argv[1]), sys.argv[2]
SERVICE, PR_SET_DUMPABLE = 4711, 4
OWNERS = {
    "systemd/resolve/io.systemd.Resolve": SERVICE,
    "systemd/resolve/io.systemd.Resolve.Monitor": 0,
    "systemd/userdb/io.systemd.DynamicUser": 0,
    "systemd/userdb/io.systemd.Multiplexer": 0,
    "systemd/userdb/io.systemd.NameServiceSwitch": 0,
    "nscd/socket": 0,
    "nslcd/socket": SERVICE,
    "samba/winbindd/pipe": 0,
    "avahi-daemon/socket": 0,
}
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
listening = []
for name, owner in OWNERS.items():
    path = f"/run/{name}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    service = socket.socket(socket.AF_UNIX)
    service.bind(path)
    service.listen()
    os.chown(path, owner, owner)
    os.chmod(path, 0o666)
    listening.append(service)
stub = Path("/run/systemd/resolve/stub-resolv.conf")
stub.write_text("nameserver 127.0.0.53\n")
link = Path(own, "resolv.conf")
link.symlink_to(stub)  # as /etc/resolv.conf
os.chown(own, user.pw_uid, user.pw_gid)
os.setgroups([])
os.setgid(user.pw_gid)
os.setuid(user.pw_uid)
ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # as of one that was started as this user
asked = {"read": [str(link)], "write": [], "own": own, "tmp": None, "namespaces": True}
sandbox = Sandbox(json.dumps(asked))
sandbox.enter_as_launcher()
sandbox.enter_as_program()
reached = []
for name in OWNERS:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(f"/run/{name}")
        except OSError:
            continue
        reached.append(name)
reads = stub.read_text() == Path(link).read_text() == "nameserver 127.0.0.53\n"
print(json.dumps({"reached": reached, "reads": reads}))
