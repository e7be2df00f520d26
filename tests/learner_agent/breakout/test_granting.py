"""What is granted around places that the platform keeps to itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_scheduler.clusters.local import isolation
from gpu_scheduler.clusters.local.environment import Folders
from learner_agent.sandbox import entry
from learner_agent.sandbox.granting import Private
from tests.learner_agent.breakout.stage import AGENT


def made(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir(parents=True)


def around(path: Path, *private: Path) -> list[str]:
    found = Private(map(str, private)).around([str(path)])
    return [each.removeprefix(f"{path}/") for each in found]


def test_a_folder_is_granted_whole_unless_something_private_is_in_it(tmp_path: Path) -> None:
    made(tmp_path, "a/data/runtimes/plain", "a/data-of-others", "a/b/key.d", "c")
    (tmp_path / "a" / "b" / "key").touch()
    data, key = tmp_path / "a" / "data", tmp_path / "a" / "b" / "key"
    assert around(tmp_path, data, key) == ["a/b/key.d", "a/data-of-others", "c"]
    assert around(tmp_path / "c", data, key) == [str(tmp_path / "c")]
    assert around(data, data) == []
    assert around(key, key) == []
    plain = data / "runtimes" / "plain"
    assert around(plain, data) == [str(plain)], "named for what it is"
    assert around(tmp_path, tmp_path / "a" / "missing") == ["a/b", "a/data", "a/data-of-others", "c"]
    assert around(tmp_path / "missing", data) == [str(tmp_path / "missing")]


def test_no_link_leads_around_it(tmp_path: Path) -> None:
    made(tmp_path, "opt/tool", "srv/data", "etc")
    (tmp_path / "opt" / "installation").symlink_to(tmp_path / "srv")
    (tmp_path / "opt" / "settings").symlink_to(tmp_path / "etc")
    (tmp_path / "link").symlink_to(tmp_path / "srv" / "data")
    data, opt = tmp_path / "srv" / "data", tmp_path / "opt"
    assert around(opt, data) == [str(opt)], "a rule for a folder is none for what its links lead to"
    assert around(opt, tmp_path / "link", opt / "x") == ["tool"]
    assert around(tmp_path / "link", data) == []
    assert around(opt / "installation", data) == []


def test_a_second_mount_of_it_is_recognized(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    made(tmp_path, "opt/luthier/data", "opt/luthier/tool", "opt/again", "opt/other")
    program = """\
import sys
from learner_agent.sandbox.granting import Private
print(*Private([sys.argv[1] + "/luthier/data"]).around([sys.argv[1]]))
"""
    opt = tmp_path / "opt"
    script = 'mount --bind "$2/luthier" "$2/again" && exec "$0" -c "$1" "$2"'
    command = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        script,
        sys.executable,
        program,
        opt,
    ]
    done = subprocess.run(command, cwd=AGENT.parent, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [f"{opt}/again/tool", f"{opt}/luthier/tool", f"{opt}/other"], done.stderr


def test_of_a_python_beside_it_only_its_own_is_granted(tmp_path: Path) -> None:
    """`./configure --prefix=$HOME`: then its prefix has the home folder."""
    made(tmp_path, "bin", "lib/python3.11", "lib/secrets", ".ssh", "luthier/.luthier")
    home = str(tmp_path)
    for private in ([home], [f"{home}/luthier/.luthier"], [home, f"{home}/luthier/.luthier"]):
        parts = [part for part in Private(private).of_python(home) if Path(part).exists()]
        assert parts == [f"{home}/bin", f"{home}/lib"]
    assert f"{home}/lib/python3.11" in Private([f"{home}/lib/secrets"]).of_python(home)
    assert f"{home}/lib" not in Private([f"{home}/lib/secrets"]).of_python(home)
    assert Private(["/usr"]).of_python(home) == [home]


def asked(tmp_path: Path, *private: Path) -> entry.Sandbox:
    """The sandbox of a learner whose environment is of this Python."""
    folders = Folders(tmp_path / "learner")
    sandboxing = isolation.Sandboxing(landlock=7, namespaces=True, private=private)
    text = sandboxing.of_learner(folders, [Path(sys.prefix)], [])
    assert text is not None
    assert json.loads(text)["private"] == sorted(map(str, private))
    return entry.Sandbox(text)


def test_what_every_program_reads_of_the_system_has_nothing_private(tmp_path: Path) -> None:
    private = Path(os.path.realpath("/usr/include"))
    granted = {os.path.realpath(path) for path in asked(tmp_path, private).read}
    assert "/usr" in {os.path.realpath(path) for path in asked(tmp_path).read}
    assert not {"/usr", "/usr/include"} & granted
    assert os.path.realpath("/usr/bin") in granted
    assert not [path for path in granted if path.startswith("/usr/include/")]


def test_the_home_folder_is_private_unless_the_operator_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(home: str) -> None:
        account = type("Account", (), {"pw_dir": home})
        monkeypatch.setattr(isolation.pwd, "getpwuid", lambda _: account)

    of(str(tmp_path))
    assert isolation.home_of_the_user([tmp_path / "data"]) == [tmp_path.resolve()]
    assert isolation.home_of_the_user([tmp_path]) == []
    assert isolation.home_of_the_user([tmp_path.parent]) == []
    of("/")
    assert isolation.home_of_the_user([]) == []
    of(str(tmp_path / "missing"))
    assert isolation.home_of_the_user([]) == []
    of("/proc/1" if os.geteuid() else "/nonexistent")  # another's
    assert isolation.home_of_the_user([]) == []
