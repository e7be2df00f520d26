"""Says what it reaches, as one line of JSON: targets by name, from the variable TARGETS as {name: [host, port]}.

It listens on PORT itself, and runs until it is stopped. With FORBIDDEN (names, with commas) it asks again until it
reaches none of them: policies are enforced a moment after a pod has started. So a target that stays reachable is shown.
"""

import json
import os
import socket
import threading
import time

PORT, TRIES_S = 8080, 30


def listen():
    listener = socket.create_server(("", PORT), backlog=64)
    while True:
        listener.accept()[0].close()


def reaches(host, port):
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


threading.Thread(target=listen, daemon=True).start()
targets = json.loads(os.environ["TARGETS"])
workers = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {}).get("worker", [])
peers = {f"peer {rank}": (worker.split(":")[0], PORT) for rank, worker in enumerate(workers)}
targets.update(peers)
forbidden = set(filter(None, os.environ.get("FORBIDDEN", "").split(",")))
deadline = time.monotonic() + TRIES_S
while True:
    found = sorted(name for name, (host, port) in targets.items() if reaches(host, port))
    as_wanted = not forbidden.intersection(found) and set(found) >= set(targets) - forbidden
    if as_wanted or time.monotonic() > deadline:
        break
    time.sleep(0.2)
print("reaches " + json.dumps(found), flush=True)
time.sleep(3600)
