"""A process of another job, or of the platform: with a secret in its environment, its memory and an open file.

It prints where they are, and lives until its standard input is closed. To whom connects to one of the paths that it is
given, and is of its own user, it reads the secret, as a terminal server or a user's systemd would run a command.
"""

# The calls that an attacker makes.
# ruff: noqa: PTH108, PTH110, PTH118
import ctypes
import json
import os
import socket
import struct
import sys
import threading

data, name, *paths = sys.argv[1:]


def serve(listener):
    while True:
        client, _ = listener.accept()
        with client:
            _, user, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if user == os.getuid():
                with open(os.path.join(data, "secret_key"), "rb") as file:
                    client.sendall(file.read())


for path in paths:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threading.Thread(target=serve, args=[listener], daemon=True).start()
os.setsid()
secret = ctypes.create_string_buffer(b"secret")
descriptor = os.open(os.path.join(data, "secret_key"), os.O_RDWR)
os.chdir(data)
libc = ctypes.CDLL(None, use_errno=True)
key = int.from_bytes(os.urandom(3), "big") + 1
memory, queue = libc.shmget(key, 4096, 0o1600), libc.msgget(key, 0o1600)
assert min(memory, queue) >= 0
shared = [f"/dev/shm/{name}", f"/dev/shm/{name}-spare"]
for path in shared:
    with open(path, "w") as file:
        file.write("secret")
stream, datagrams = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
stream.bind("\0" + name)
stream.listen()
datagrams.bind("\0" + name + "-datagrams")
_, terminal = os.openpty()
place = {
    "victim": os.getpid(), "address": ctypes.addressof(secret), "descriptor": descriptor, "key": key,
    "shared": name, "abstract": name, "terminal": os.ttyname(terminal),
}  # fmt: skip
print(json.dumps(place), flush=True)
sys.stdin.read()
libc.shmctl(memory, 0, None)
libc.msgctl(queue, 0, None)
for path in shared:
    if os.path.exists(path):
        os.unlink(path)
