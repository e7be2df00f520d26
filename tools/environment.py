"""Make .venv exactly what the lock files say.

Runs with whatever `python3` the machine has, so it uses the standard library and old syntax only.
Nothing happens when the environment already matches the locks; then it costs about 30 ms.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
STAMP = os.path.join(VENV, ".locked")
GROUPS = ("runtime", "dev", "build")
SOURCES = ("gpu_scheduler", "jobs", "learner_agent", "portal", "tenants")
TOO_MUCH = (
    " + ",
    " - ",
    " ~ ",
    " Downloaded",
    "Resolved",
    "Prepared",
)  # of uv's report, which names every package
OLDEST = (3, 11)
MACHINE_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# uv does not read pip's settings; a machine that reaches its packages through them should still work.
PIP_TO_UV = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_CERT": "SSL_CERT_FILE",
}


def main():
    asked = tuple(sys.argv[1:]) or GROUPS
    if sys.version_info < OLDEST:
        stop(
            "Luthier needs Python 3.11 or newer; this is %s. Name another with PYTHON=python3.12." % version()
        )
    installed = stamp()
    if all(installed.get(group) == fingerprint(group) for group in asked):
        return
    # What an earlier call installed stays: `make up` after `make test` takes nothing away.
    groups = [group for group in GROUPS if group in asked or group in installed]
    started = time.monotonic()
    say("Setting up the Python environment (%s) ..." % ", ".join(groups))
    if not os.path.exists(os.path.join(VENV, "bin", "python")):
        run([sys.executable, "-m", "venv", "--without-pip", "--clear", VENV], "create the environment")
    locks = [lock_path(group) for group in groups]
    options = ["--require-hashes", "--compile-bytecode", "--python", python()]
    run([find_uv(), "pip", "sync", *options, *locks], "install the locked packages")
    shutil.rmtree(os.path.join(VENV, ".bootstrap"), ignore_errors=True)
    compile_sources()
    with open(STAMP, "w") as file:
        json.dump({group: fingerprint(group) for group in groups}, file)
    say("Python environment ready in %.1f s" % (time.monotonic() - started))


def compile_sources():
    """So that the first start need not; later changes are compiled by the process that loads them."""
    folders = [path for path in (os.path.join(ROOT, name) for name in SOURCES) if os.path.isdir(path)]
    if folders:  # an image's build has none yet
        run([python(), "-m", "compileall", "-q", "-j", "0", *folders], "compile the sources")


def find_uv():
    """uv from the environment, else from the machine, else installed by pip for this one purpose."""
    inside = os.path.join(VENV, "bin", "uv")
    for candidate in (inside, shutil.which("uv")):
        if candidate and os.path.exists(candidate):
            return candidate
    say("Fetching uv ...")
    installer = os.path.join(VENV, ".bootstrap")
    if not has_pip() and not has_ensurepip():
        install_debian_venv()
    if has_pip():
        target = ["--target", installer]
        pip = [sys.executable, "-m", "pip"]
    else:
        run([sys.executable, "-m", "venv", "--clear", installer], "create a place for uv")
        target = []
        pip = [os.path.join(installer, "bin", "python"), "-m", "pip"]
    quiet = ["--quiet", "--disable-pip-version-check", "--require-hashes"]
    run([*pip, "install", *quiet, *target, "-r", lock_path("bootstrap")], "install uv")
    return os.path.join(installer, "bin", "uv")


def has_pip():
    return subprocess.call([sys.executable, "-m", "pip", "--version"], **silent()) == 0


def has_ensurepip():
    return subprocess.call([sys.executable, "-c", "import ensurepip"], **silent()) == 0


def install_debian_venv():
    """Debian ships Python without ensurepip; root may install it; other users get the command."""
    if shutil.which("apt-get") and os.geteuid() == 0:
        say("Installing Debian's python3-venv ...")
        subprocess.call(["apt-get", "update", "-qq"])
        if (
            subprocess.call(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "python3-venv"])
            == 0
        ):
            return
    stop(
        "This Python has neither pip nor ensurepip. Install python3-venv (Debian, Ubuntu) and run make again."
    )


def fingerprint(group):
    """Of one group's lock and the Python it is installed for."""
    with open(lock_path(group), "rb") as file:
        return hashlib.sha256(version().encode() + file.read()).hexdigest()


def stamp():
    """Fingerprints of the groups that are installed now, by name."""
    try:
        with open(STAMP) as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def lock_path(group):
    return os.path.join(ROOT, "requirements", group + ".txt")


def python():
    return os.path.join(VENV, "bin", "python")


def version():
    return ".".join(str(part) for part in sys.version_info[:3])


def silent():
    return {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def run(command, purpose):
    env = dict(os.environ)
    for theirs, ours in PIP_TO_UV.items():
        if env.get(theirs):
            env.setdefault(ours, env[theirs])
    env.setdefault("PIP_ROOT_USER_ACTION", "ignore")
    if os.path.exists(MACHINE_CERTIFICATES):
        env.setdefault("UV_SYSTEM_CERTS", "true")  # a mirror or proxy may be known to this machine only
    env.setdefault("UV_COMPILE_BYTECODE_TIMEOUT", "600")  # its own 60 s are too few where the machine is busy
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as process:
        for line in process.stderr:
            text = line.decode(errors="replace")
            if not text.startswith(TOO_MUCH):
                sys.stderr.write(text)
                sys.stderr.flush()
    if process.returncode != 0:
        stop("Could not %s; the lines above say why." % purpose)


def say(line):
    print(line, flush=True)


def stop(line):
    print(line, file=sys.stderr, flush=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
