"""How the test cluster's programs are built and kept, and what they are started with. Nothing is compiled here."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.kube import binaries, components
from tools.kube.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
PORTS = components.Ports(etcd=1, etcd_peers=2, apiserver=3, controllers=4, scheduler=5)
LAYOUT = components.Layout(Path("/cluster"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LUTHIER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kube"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(binaries, "say", said.append)
    return said


def building(monkeypatch: pytest.MonkeyPatch, build: Callable[[Path, Path], None]) -> None:
    monkeypatch.setattr(binaries, "build_all", build)


def test_programs_are_built_once_and_found_again(
    cache: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    building(monkeypatch, lambda _, built: (built / "kube").write_text("program"))
    assert binaries.find() is None
    built = binaries.build()
    assert Path(built["kube"]).read_text() == "program"
    building(monkeypatch, lambda *_: pytest.fail("built twice"))
    assert binaries.build() == binaries.find() == built
    assert sorted(path.name for path in cache.iterdir()) == ["lock", built.folder.name]


def test_of_two_builds_at_once_one_waits(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other_waits = threading.Event()
    builds: list[Path] = []
    monkeypatch.setattr(binaries, "say", lambda line: other_waits.set() if "Waiting" in line else None)

    def build(_: Path, built: Path) -> None:
        builds.append(built)
        assert other_waits.wait(60)

    building(monkeypatch, build)
    with ThreadPoolExecutor(2) as threads:
        first, second = [threads.submit(binaries.build) for _ in range(2)]
        assert first.result() == second.result()
    assert len(builds) == 1


def test_a_build_that_fails_leaves_nothing_and_says_why(
    cache: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(_: Path, built: Path) -> None:
        (built / "kube").touch()
        raise binaries.BuildFailed("kube could not be built:\nsyntax error")

    building(monkeypatch, build)
    assert main(["build"]) == 1
    assert capsys.readouterr().err == "kube could not be built:\nsyntax error\n"
    assert [path.name for path in cache.iterdir()] == ["lock"]


def test_what_a_killed_build_has_left_is_removed_by_the_next(
    cache: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (".build-killed", ".go-killed"):
        (cache / name).mkdir(parents=True)
    building(monkeypatch, lambda _, built: (built / "kube").touch())
    built = binaries.build()
    assert sorted(path.name for path in cache.iterdir()) == ["lock", built.folder.name]


def test_too_little_room_is_reported_before_the_build(
    cache: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**30))
    with pytest.raises(binaries.BuildFailed, match=r"1.0 GiB are free .* with LUTHIER_CACHE"):
        binaries.build()


def test_another_module_version_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = binaries.name()
    assert before == binaries.name()
    changed = tmp_path / "modules" / "kube"
    changed.mkdir(parents=True)
    (changed / "go.mod").write_text("require k8s.io/kubernetes v1.36.4\n")
    monkeypatch.setattr(binaries, "ROOT", tmp_path)
    monkeypatch.setattr(binaries, "MODULES", tmp_path / "modules")
    monkeypatch.setattr(binaries, "GO_LOCK", changed / "go.mod")
    assert binaries.name().startswith("v1.36.4-")
    assert binaries.name().partition("-")[2] != before.partition("-")[2]


def test_upstreams_tests_are_built_apart_from_the_cluster(
    cache: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that does not need them does not wait for them, and a change to one builds the other not again."""
    building(monkeypatch, lambda *_: pytest.fail("the cluster was built"))
    monkeypatch.setattr(
        binaries, "build_programs_of_suite", lambda _, built: (built / "e2e").write_text("program")
    )
    assert Path(binaries.build_suite()["e2e"]).read_text() == "program"
    assert binaries.find() is None


def test_netpol_without_real_nodes_is_refused(
    cache: Path,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    building(monkeypatch, lambda *_: None)
    assert main(["--folder", str(tmp_path / "none"), "up", "--netpol"]) == 1
    assert capsys.readouterr().err == "--netpol needs real nodes: add --nodes 2.\n"


def test_the_cache_is_below_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LUTHIER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert binaries.cache_root() == tmp_path / "luthier" / "kube"


def test_progress_is_reported_now_and_then(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(binaries, "time", SimpleNamespace(monotonic=lambda: clock))
    progress = binaries.Progress("kube")
    for number in range(50):
        clock = number * 1.5
        progress.line("go: downloading k8s.io/api v0.36.3" if number < 10 else f"k8s.io/api/{number}")
    progress.close()
    assert lines == [
        "  kube: 10 modules downloaded, 5 packages compiled, 21 s",
        "  kube: 10 modules downloaded, 19 packages compiled, 42 s",
        "  kube: 10 modules downloaded, 33 packages compiled, 1 min 3 s",
        "  kube: done, 10 modules downloaded, 40 packages compiled, 1 min 14 s",
    ]


def test_every_module_of_a_build_has_its_sum() -> None:
    for folder in {
        program.module
        for program in (*binaries.programs(), *binaries.suite_programs(), *binaries.prometheus_programs())
    }:
        module = binaries.MODULES / folder
        sums = (module / "go.sum").read_text()
        required = re.findall(
            r"^\t([\w./~-]+) (v[\w.+-]+)(?: //.*)?$", (module / "go.mod").read_text(), re.MULTILINE
        )
        replaced = dict(re.findall(r"^\t(\S+) => \S+ (v\S+)$", (module / "go.mod").read_text(), re.MULTILINE))
        assert len(required) > 50
        missing = [name for name, version in required if f"{name} {replaced.get(name, version)}" not in sums]
        assert missing == []


def test_no_program_listens_beyond_loopback() -> None:
    for command in (components.apiserver(LAYOUT, PORTS), components.controllers(LAYOUT, PORTS),
                    components.scheduler(LAYOUT, PORTS)):  # fmt: skip
        assert "--bind-address=127.0.0.1" in command
    assert "--node-port=0" in components.kwok(LAYOUT)
    urls = re.findall(r"\w+://[^\"]*", components.etcd_config(LAYOUT, PORTS))
    assert {url.rpartition(":")[0] for url in urls} == {"https://127.0.0.1"}


def test_kubectl_without_a_cluster_says_how_to_start_one(
    cache: Path,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    building(monkeypatch, lambda *_: None)
    assert main(["--folder", str(tmp_path / "none"), "kubectl", "get", "pods"]) == 1
    assert "Start one with: python -m tools.kube up" in capsys.readouterr().err
    assert main(["--folder", str(tmp_path / "none"), "down"]) == 0
