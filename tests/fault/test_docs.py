"""Every command of README and docs/ does what it says, as written, for a newcomer.

A fresh copy of the source tree, an empty home, no variables, and no programs but those of a plain Debian with
`python3`, `make` and `curl`.
README's first command starts the platform. Then each page is one bash that runs its blocks in order and stops at the
first command that fails; curl fails for a refusal, too.
"""

from __future__ import annotations

import contextlib
import http.cookiejar
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.documents import IN_PAGE, ROOT, commands
from tests.platform import free_port, wait_for

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

STARTED = re.compile(r"Luthier is at  (\S+)\n(?:.*\n)*?    alice +(\S+)(?:.*\n)*?  Ctrl-C stops everything")
MACHINE = (
    "awk base64 basename bash cat chmod chown cmp cp curl cut date dd df diff dirname env expand expr false find grep "
    "gzip head hostname id install kill ldconfig ln ls make mkdir mkfifo mktemp mv nice nproc nohup od ps printf pwd "
    "readlink realpath rm rmdir sed seq setsid sh sleep sort stat stty sync tail tar tee test timeout touch tr true "
    "tty uname uniq unshare wc which xargs"
)
"""Commands that every Debian has, and curl, which README asks for; python3 is added."""

PACKAGE_SOURCES = re.compile("(PIP|UV|NPM|npm|SSL|NODE_EXTRA|CURL|REQUESTS)_.*|.*_proxy|.*_PROXY|LANG|TMPDIR")
"""Variables by which a machine says where packages come from: a newcomer's machine has them, too."""


@dataclass(frozen=True)
class Newcomer:
    """A shell in a fresh copy of the source tree, next to a running platform."""

    copy: Path
    env: dict[str, str]
    typed: dict[str, str]
    """What a reader writes in place of what the pages can only show: the address and the token."""

    def run(self, script: str) -> tuple[int, str]:
        """The exit code, 124 if it never ended, and the end of what was printed."""
        for shown, real in self.typed.items():
            script = script.replace(shown, real)
        done = subprocess.run(
            ["timeout", "240", "bash", "-euxc", script],
            cwd=self.copy,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        return done.returncode, done.stdout[-8000:]


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    """What README's first command starts, until Ctrl-C."""
    folder = tmp_path_factory.mktemp("newcomer")
    copy, home = _fresh_copy(folder / "luthier"), folder / "home"
    home.mkdir()
    (home / ".curlrc").write_text("fail-with-body\nshow-error\nsilent\nmax-time = 60\n")
    env = _variables(home, _only_debian(folder / "bin"))
    (up,) = commands("platform")
    log = folder / "up.log"
    with log.open("wb") as output:
        started = subprocess.Popen(
            ["bash", "-euc", up.text],
            cwd=copy,
            env=env | {"ARGS": f"--port {free_port()} --nodes node-a:cpu:4"},  # as `make up ARGS=…`
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        url, password = wait_for(lambda: _address(started, log), within_s=300, what=f"the start; see {log}")
        typed = {"http://127.0.0.1:8000": url, "lut_…": _token(url, "alice", password)}
        yield Newcomer(copy, env, typed)
    finally:
        _end(started)
        shutil.rmtree(copy)  # a whole installation: too large to keep


def _end(started: subprocess.Popen[bytes]) -> None:
    """Ctrl-C, and wait for the end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGINT)
    try:
        started.wait(150)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        raise


@pytest.mark.parametrize("page", dict.fromkeys(block.page for block in commands(IN_PAGE)))
def test_every_command_of_a_page_works_as_written(newcomer: Newcomer, page: str) -> None:
    script = "\n".join(block.text for block in [*commands("variables"), *commands(IN_PAGE, page)])
    code, printed = newcomer.run(script)
    assert code == 0, printed


def _fresh_copy(copy: Path) -> Path:
    """What git would clone, with what is not committed yet."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


def _only_debian(folder: Path) -> Path:
    """A PATH of one folder, so that no command that happens to be installed here helps along."""
    folder.mkdir()
    for name in MACHINE.split():
        if found := shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin"):
            (folder / name).symlink_to(found)
    debian = Path("/usr/bin/python3")
    with_pip = (
        debian.exists()
        and subprocess.run([debian, "-m", "pip", "--version"], capture_output=True).returncode == 0
    )
    (folder / "python3").symlink_to(debian if with_pip else Path(sys._base_executable))  # type: ignore[attr-defined]
    return folder


def _variables(home: Path, path: Path) -> dict[str, str]:
    """An empty environment, but the machine's sources of packages, and caches so that none is downloaded twice."""
    kept = {name: value for name, value in os.environ.items() if PACKAGE_SOURCES.fullmatch(name)}
    own = Path.home()
    caches = {
        "UV_CACHE_DIR": str(own / ".cache" / "uv"),
        "npm_config_cache": str(own / ".npm"),
        "npm_config_userconfig": str(own / ".npmrc"),
    }
    return caches | kept | {"PATH": str(path), "HOME": str(home)}


def _address(started: subprocess.Popen[bytes], log: Path) -> tuple[str, str] | None:
    """Address and alice's password, as the start prints them."""
    printed = log.read_text(errors="replace")
    if started.poll() is not None:
        raise RuntimeError(f"it ended with {started.returncode}:\n{printed[-4000:]}")
    found = STARTED.search(printed)
    return (found[1], found[2]) if found else None


def _token(url: str, name: str, password: str) -> str:
    """Sign in and create a token, as README asks."""
    jar = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    form = browser.open(f"{url}/login").read().decode()
    csrf = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form)
    assert csrf
    fields = {"username": name, "password": password, "csrfmiddlewaretoken": csrf[1]}
    browser.open(_request(f"{url}/login", urllib.parse.urlencode(fields).encode())).read()
    cookie = next(each.value for each in jar if each.name == "csrftoken")
    asked = _request(f"{url}/api/v1/me/tokens", json.dumps({"name": "laptop", "password": password}).encode())
    asked.add_header("Content-Type", "application/json")
    asked.add_header("X-CSRFToken", str(cookie))
    return str(json.load(browser.open(asked))["secret"])


def _request(url: str, body: bytes) -> urllib.request.Request:
    return urllib.request.Request(url, body, {"Referer": url})
