"""A job's own packages: chosen once, built once, on top of a runtime that is not copied; nothing of them runs here."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.clusters.base import EndReason, GangSpec
from gpu_scheduler.clusters.local import environment, interpreters, layers, package_cache, runtime_failure
from gpu_scheduler.clusters.local.builder import (
    LINE_CHARS,
    LOG_BYTES,
    READY,
    Preparing,
    builder_environment,
    exclusive_lock,
)
from gpu_scheduler.clusters.local.package_cache import Cached
from gpu_scheduler.clusters.local.packages import Environments, PackagesBuild, Ready
from gpu_scheduler.clusters.local.runtime_failure import RuntimeFailed
from tests.gpu_scheduler.clusters.harness import all_ended, launch
from tests.gpu_scheduler.clusters.node_daemon import TIMEOUT_S, NodeDaemon, wait_for
from tests.gpu_scheduler.clusters.wheelhouse import wheel

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
ADMINS = ("lower==1.0",)


def wanted(name: str = "job-x-1", **changes: object) -> GangSpec:
    return replace(launch(name, "runs"), **({"runtime": "plain"} | changes))  # type: ignore[arg-type]


def with_base(**changes: object) -> GangSpec:
    """A gang on an administrator's runtime that has lower 1.0."""
    return wanted(runtime="own", runtime_requirements=ADMINS, **changes)


def made(environments: Environments, spec: GangSpec) -> Ready:
    deadline = time.monotonic() + 2 * TIMEOUT_S
    while isinstance(found := environments.get(spec), Preparing):
        assert time.monotonic() < deadline, found.text
        time.sleep(0.02)
    return found


def says(folder: Path, program: str) -> str:
    done = subprocess.run([folder / "bin" / "python", "-c", program], capture_output=True, text=True)
    return done.stdout.strip() or done.stderr


def folders(environments: Environments) -> list[str]:
    return sorted(path.name for path in environments._home.iterdir() if path.name[0] != ".")


def test_requirements_come_on_top_of_a_runtime_whose_versions_stay_where_they_may(
    environments: Environments,
) -> None:
    ready = made(environments, with_base(requirements=("upper",)))
    assert ready.lock == ("lower==1.0", "upper==1.5")
    assert says(ready.top, "import upper, lower; print(upper.VERSION, lower.VERSION)") == "1.5 1.0"
    site = layers.site_packages(ready.top)
    assert site is not None
    assert not (site / "lower.py").exists(), "what the runtime has is not copied"


def test_a_requirement_that_the_runtime_contradicts_gets_versions_of_its_own(
    environments: Environments,
) -> None:
    ready = made(environments, with_base(requirements=("greedy",)))
    assert ready.lock == ("greedy==1.0", "lower==2.0")
    assert says(ready.top, "import lower; print(lower.VERSION)") == "2.0"
    assert says(ready.base, "import lower; print(lower.VERSION)") == "1.0"


def test_a_lock_is_kept_whatever_the_index_has_meanwhile(environments: Environments, index: Path) -> None:
    first = made(environments, wanted(requirements=("upper",)))
    wheel(index, "upper", "9.0")
    again = made(environments, wanted("job-x-2", requirements=("upper",), lock=first.lock))
    assert (again.top, again.lock) == (first.top, first.lock)
    assert "upper==9.0" in made(environments, wanted("job-y-1", requirements=("upper",))).lock


def test_jobs_with_the_same_versions_share_one_environment_that_is_built_once(
    environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = []
    install = PackagesBuild._install
    monkeypatch.setattr(
        PackagesBuild, "_install", lambda build, at: (builds.append(at), install(build, at))[1]
    )
    made(environments, wanted())
    specs = [wanted(f"job-{n}-1", requirements=("upper",) if n % 2 else ("upper>=1",)) for n in range(4)]
    found: list[Ready] = []
    threads = [
        threading.Thread(target=lambda spec=spec: found.append(made(environments, spec))) for spec in specs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({ready.top for ready in found}) == 1
    assert len(found) == 4
    assert len(builds) == len(folders(environments)) == 1


def test_what_the_runtime_has_already_is_not_built_at_all(environments: Environments) -> None:
    ready = made(environments, with_base(requirements=("lower",)))
    assert (ready.top, ready.lock) == (ready.base, ("lower==1.0",))
    assert folders(environments) == []


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        ("nothing-of-this-name", "nothing-of-this-name was not found"),
        ("upper==7.0", "upper==7.0"),
    ],
)
def test_what_cannot_be_resolved_fails_for_good_in_the_resolvers_own_words(
    environments: Environments, requirement: str, words: str
) -> None:
    with pytest.raises(RuntimeFailed) as failed:
        made(environments, with_base(requirements=(requirement,)))
    assert not failed.value.temporary
    assert words in failed.value.message("node local")
    assert failed.value.message("node local").startswith("The job's packages cannot be installed. ")
    assert folders(environments) == []


def test_an_index_that_cannot_be_reached_is_no_fault_of_the_job(
    environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(environments, wanted())
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(RuntimeFailed) as failed:
        made(environments, wanted(requirements=("nothing-of-this-name",)))
    assert failed.value.temporary
    assert failed.value.message("node a") == (
        "The package index could not be reached from node a while preparing the job's packages."
    )


def test_nothing_of_a_package_runs_where_it_is_installed(
    environments: Environments, index: Path, tmp_path: Path
) -> None:
    """A .pth file runs at every start of its Python: not of one that the platform starts, only of the job's."""
    trap = tmp_path / "ran"
    line = f"import pathlib; pathlib.Path({str(trap)!r}).write_text('ran')\n"
    wheel(index, "evil", "1.0", files={"evil_start.pth": line, "sitecustomize.py": line})
    ready = made(environments, wanted(requirements=("evil",)))
    made(environments, wanted("job-x-2", requirements=("evil",)))
    assert not trap.exists()
    assert says(ready.top, "print('here')") == "here"
    assert trap.exists(), "else this test would prove nothing"


def test_a_source_package_is_refused_with_what_to_do(environments: Environments, index: Path) -> None:
    with tarfile.open(index / "sourceonly-1.0.tar.gz", "w:gz") as packed:
        for name, text in (
            ("sourceonly-1.0/setup.py", "raise SystemExit('ran')"),
            ("sourceonly-1.0/PKG-INFO", "Metadata-Version: 2.1\nName: sourceonly\nVersion: 1.0\n"),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            packed.addfile(entry, io.BytesIO(text.encode()))
    with pytest.raises(RuntimeFailed, match=r"setup: \[pip install") as failed:
        made(environments, wanted(requirements=("sourceonly",)))
    assert not failed.value.temporary


def test_progress_counts_megabytes_until_all_is_fetched(tmp_path: Path) -> None:
    build = PackagesBuild(wanted(requirements=("x",)), tmp_path, tmp_path)
    messages = [build.progress()]
    for line in (
        "Downloading torch (40.0MiB)", "Downloading numpy (10.0MiB)", " Downloaded torch", "Prepared 2 packages in 1s",
    ):  # fmt: skip
        build._parse_line(line)
        messages.append(build.progress())
    assert messages == [
        f"Preparing packages{it}"
        for it in ("", ", 0 of 42 MB", ", 0 of 52 MB", ", 42 of 52 MB", ", all fetched")
    ]


def test_a_builder_gets_nothing_of_the_platforms_secrets() -> None:
    platform = {
        "SECRET_KEY": "s", "DATABASE_URL": "s", "REDIS_URL": "s", "EMAIL_URL": "s", "LUTHIER_SECRET": "s",
        "AWS_SECRET_ACCESS_KEY": "s", "PATH": "/bin", "PIP_CERT": "/cert",
    }  # fmt: skip
    given = builder_environment(platform)
    assert "s" not in given.values()
    assert (given["PATH"], given["SSL_CERT_FILE"], given["UV_PYTHON_DOWNLOADS"]) == ("/bin", "/cert", "never")


@pytest.mark.parametrize("version", interpreters.versions())
def test_a_plain_python_of_each_version_here_runs_with_packages(
    environments: Environments, version: str
) -> None:
    ready = made(environments, wanted(runtime=None, python=version, requirements=("upper",)))
    assert says(ready.top, "import sys, upper; print('%d.%d' % sys.version_info[:2], upper.VERSION)") == (
        f"{version} 1.5"
    )


def test_a_python_that_this_machine_lacks_is_refused_with_those_there_are(
    environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreters, "find", lambda: {VERSION: Path(sys.executable)})
    assert environments.refusal(wanted(runtime=None, python="3.4")) == (
        f"This machine has no Python 3.4; it has: {VERSION}."
    )
    assert environments.refusal(wanted(runtime=None, python=VERSION)) == ""


def test_an_interpreter_that_only_pretends_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = tmp_path / "python3.13"
    shim.write_text("#!/bin/sh\necho command not found >&2; exit 127\n")
    shim.chmod(0o755)
    monkeypatch.setattr(interpreters, "_candidates", lambda version: iter([shim, tmp_path / "absent"]))
    assert interpreters._look() == {}


def test_an_administrators_runtime_is_made_again_of_the_same_versions(
    environments: Environments, index: Path
) -> None:
    spec = wanted(runtime="own", runtime_requirements=("upper",))
    first = made(environments, spec)
    wheel(index, "upper", "9.0")
    shutil.rmtree(first.base)
    again = made(environments, spec)
    assert again.base == first.base
    assert says(again.base, "import upper; print(upper.VERSION)") == "1.5"


def test_pip_installs_into_the_learners_own_environment_and_changes_no_shared_one(
    environments: Environments, index: Path, tmp_path: Path
) -> None:
    ready = made(environments, with_base(requirements=("upper",)))
    before = sorted(
        str(path)
        for path in [*ready.base.rglob("*"), *ready.top.rglob("*")]
        if "__pycache__" not in str(path)
    )
    own = tmp_path / "env"
    for _ in range(2):  # a daemon that died meanwhile does it again
        assert layers.make_own(own, ready.top, environments.pip())
    env = {"PATH": f"{own}/bin:{os.environ['PATH']}", "PIP_FIND_LINKS": str(index), "PIP_NO_INDEX": "1"}
    done = subprocess.run(["pip", "install", "lower==2.0"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert says(own, "import lower, upper; print(lower.VERSION, upper.VERSION)") == "2.0 1.5"
    assert says(ready.top, "import lower; print(lower.VERSION)") == "1.0"
    after = sorted(
        str(path)
        for path in [*ready.base.rglob("*"), *ready.top.rglob("*")]
        if "__pycache__" not in str(path)
    )
    assert after == before


def test_a_gang_whose_packages_cannot_be_had_ends_in_the_resolvers_words(daemon: NodeDaemon) -> None:
    daemon.cluster.launch(replace(launch("job-x-1", "runs"), runtime="fake", requirements=("no/such",)))
    wait_for(lambda: all_ended(daemon.cluster.observe().gangs["job-x-1"]))
    (learner,) = daemon.cluster.observe().gangs["job-x-1"].learners
    assert learner.reason == EndReason.DEPLOY_FAILED
    assert learner.message.startswith("The job's packages cannot be installed. ")
    lines = learner.output.splitlines()
    assert lines[0].startswith("$ uv pip compile ")
    assert "error:" in lines[learner.numbers["line"] - 1]


def test_the_log_of_a_build_is_bounded_names_the_line_and_has_no_password() -> None:
    build = PackagesBuild(wanted(), Path("home"), Path("base"))
    for n in range(20_000):
        build._parse_line(f"Downloading nothing-{n}")
    for line in ("  × No solution found", "  ╰─▶ Because of https://me:secret@index/simple", "z" * 100_000):
        build._parse_line(line)
    build.failed = RuntimeFailed("No.", "", temporary=False, output="the last lines")
    build._end()
    lines = build.failed.output.splitlines()
    assert 30_000 < len(build.failed.output.encode()) <= LOG_BYTES
    assert lines[build.failed.line - 1] == "  × No solution found"  # type: ignore[operator]
    assert lines[-2].endswith("Because of https://index/simple")
    assert len(lines[-1]) == LINE_CHARS


def test_messages_of_the_resolver_may_contain_anything_and_come_without_its_hints() -> None:
    said = [
        "  × No solution found when resolving {x}:",
        "  ╰─▶ Because {0} has no usable wheels",
        "      and you require {0}.",
        "",
        "      hint: use --no-build",
    ]
    failed = runtime_failure.of_packages(said)
    assert failed.message("node a") == (
        "The job's packages cannot be installed. Because {0} has no usable wheels and you require {0}."
        " Only wheels are installed for requirements; setup: [pip install …] can build a source package in the job."
    )


def test_a_job_waits_for_the_builder_of_the_same_versions(environments: Environments) -> None:
    first = made(environments, wanted(requirements=("upper",)))
    with exclusive_lock(first.top):
        spec = wanted("job-x-2", requirements=("upper",), lock=first.lock)
        assert isinstance(environments.get(spec), Preparing)
    assert made(environments, spec).top == first.top


DAY = 24 * 3600.0


def cached(name: str, idle_s: float, *, base: str = "", size: int = 0) -> Cached:
    return Cached(Path(name), 1e9 - idle_s, base, size)


def test_what_no_job_used_for_long_is_removed_and_a_runtime_only_after_what_is_on_it() -> None:
    packages_ = [
        cached("old", 31 * DAY, base="own-1"),
        cached("new", 29 * DAY, base="own-2"),
        cached("held", 99 * DAY),
    ]
    runtimes = [
        cached("own-1", 40 * DAY),
        cached("own-2", 40 * DAY),
        cached("tree", 99 * DAY),
        cached("own-3", DAY),
    ]
    gone = package_cache.surplus(packages_, runtimes, {Path("held"), Path("tree")}, 1e9)
    assert [each.folder.name for each in gone] == ["old", "own-1"]


def test_above_the_size_the_least_recently_used_go_but_none_that_a_job_is_about_to_start_in() -> None:
    half = package_cache.MAX_BYTES // 2
    found = [cached(name, idle_s, size=half) for name, idle_s in (("c", 3 * DAY), ("a", DAY), ("b", 2 * DAY))]
    assert [each.folder.name for each in package_cache.surplus(found, [], (), 1e9)] == ["c"]
    fresh = [cached(str(n), 60.0 * n, size=half) for n in range(5)]
    assert package_cache.surplus(fresh, [], (), 1e9) == []


def test_an_unused_environment_goes_with_the_sweep_and_one_of_a_running_gang_stays(
    environments: Environments,
) -> None:
    unused = made(environments, wanted(requirements=("lower",)))
    running = made(environments, wanted("job-x-2", requirements=("upper",)))
    for folder in (unused.top, running.top, unused.base):
        os.utime(folder / READY, (1e9, 1e9))
    environments.sweep([str(running.top)]).join()
    assert folders(environments) == [running.top.name]
    assert unused.base.exists(), "a runtime of the source tree is kept"
    assert made(environments, wanted(requirements=("lower",))).top.exists()


def test_a_package_that_brings_the_platforms_own_marks_changes_nothing_but_its_environment(
    environments: Environments, index: Path
) -> None:
    planted = {"_luthier.pth": "import os\n", "sly-1.0.data/data/.luthier-ready": '{"bytes": "x"}'}
    wheel(index, "sly", "1.0", files=planted)
    ready = made(environments, with_base(requirements=("sly", "upper")))
    assert says(ready.top, "import sly, upper, lower; print(lower.VERSION)") == "1.0"
    (note,) = package_cache.scan(environments._home)
    assert (note.base, note.bytes > 0) == (ready.base.name, True)
    shutil.rmtree(ready.top)
    assert says(made(environments, with_base(requirements=("sly", "upper"))).top, "import sly") == ""


def test_addresses_of_package_sources_with_a_password_stay_with_the_platform() -> None:
    given = {"PIP_INDEX_URL": "https://user:word@host/simple", "PIP_CERT": "/cert", "SECRET_KEY": "s"}
    assert environment.package_sources(given) == {"PIP_CERT": "/cert"}
