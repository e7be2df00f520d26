"""Versions of packages are chosen before there is a gang: by the same resolver, bounded, and with nothing installed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gpu_scheduler.clusters.base import (
    ChoosesPackages,
    ClusterBusy,
    ClusterError,
    EnvironmentSpec,
    LaunchRefused,
)
from gpu_scheduler.clusters.local import builder, choices, protocol
from gpu_scheduler.clusters.local.choices import AT_ONCE, Choices
from gpu_scheduler.clusters.local.client import request
from gpu_scheduler.clusters.local.packages import Environments, PackagesBuild
from gpu_scheduler.clusters.local.protocol import InvalidRequest
from gpu_scheduler.clusters.memory import MemoryCluster
from tests.gpu_scheduler.clusters.node_daemon import running_daemon, wait_for
from tests.gpu_scheduler.clusters.wheelhouse import wheel


def asked(*requirements: str) -> EnvironmentSpec:
    return EnvironmentSpec(runtime="plain", requirements=requirements)


def answer(chooser: ChoosesPackages, spec: EnvironmentSpec) -> tuple[str, ...]:
    """What it says once it has chosen. While the runtime is made, and while others are at work, it is busy."""
    found: list[tuple[str, ...]] = []

    def has_answered() -> bool:
        try:
            versions = chooser.choose(spec)
        except ClusterBusy as busy:
            if "Preparing" in str(busy) or not str(busy):
                return False
            raise
        found.extend([] if versions is None else [versions])
        return bool(found)

    wait_for(has_answered, what=lambda: f"no answer about {spec.requirements}")
    return found[0]


def in_folder(environments: Environments) -> list[str]:
    return [path.name for path in environments._home.iterdir()]


def test_versions_are_those_that_a_gang_would_get_and_nothing_is_installed(
    environments: Environments,
) -> None:
    own = EnvironmentSpec(runtime="own", runtime_requirements=("lower==1.0",), requirements=("upper",))
    chooser = Choices(environments)
    assert answer(chooser, asked("upper")) == ("lower==1.0", "upper==1.5")
    assert answer(chooser, own) == ("lower==1.0", "upper==1.5")
    assert answer(chooser, asked("greedy; python_version < '3'")) == ()
    assert in_folder(environments) == []


def test_what_cannot_be_resolved_is_refused_in_the_resolvers_words(environments: Environments) -> None:
    with pytest.raises(LaunchRefused, match="nothing-of-this-name was not found") as refused:
        answer(Choices(environments), asked("nothing-of-this-name"))
    assert str(refused.value).startswith("The job's packages cannot be installed. Because ")


def test_an_index_that_is_away_refuses_nothing(
    environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    chooser = Choices(environments)
    answer(chooser, asked("upper"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(ClusterBusy, match="The package index could not be reached"):
        answer(chooser, asked("nothing-of-this-name"))


def test_jobs_that_require_the_same_are_one_resolution_and_a_later_one_is_asked_again(
    environments: Environments, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = []
    resolve = PackagesBuild._resolve
    monkeypatch.setattr(
        PackagesBuild, "_resolve", lambda build, has: (resolved.append(build), resolve(build, has))[1]
    )
    chooser = Choices(environments)
    for _ in range(3):
        assert answer(chooser, asked("upper")) == ("lower==1.0", "upper==1.5")
    assert len(resolved) == 1
    wheel(index, "upper", "9.0")
    monkeypatch.setattr(choices, "KEPT_S", -1.0)
    found: list[object] = []
    wait_for(
        lambda: found.append(chooser.choose(asked("upper"))) or len(resolved) == 2, what=lambda: resolved
    )


def test_so_many_at_once_and_no_more_and_a_daemon_that_ends_leaves_none(
    environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    chooser = Choices(environments)
    answer(chooser, asked("lower"))
    let, canceled = threading.Event(), []
    monkeypatch.setattr(PackagesBuild, "choose", lambda build: let.wait() and None)
    monkeypatch.setattr(PackagesBuild, "cancel", lambda build: (canceled.append(build), let.set()))
    for n in range(AT_ONCE):
        assert chooser.choose(asked(f"upper>={n}")) is None
    with pytest.raises(ClusterBusy, match="other jobs' packages"):
        chooser.choose(asked("greedy"))
    assert chooser.choose(asked("upper>=0")) is None, "one that is at work counts once"
    chooser.close()
    assert len(canceled) == AT_ONCE
    wait_for(lambda: not chooser._running, what=lambda: chooser._running)
    with pytest.raises(ClusterBusy):
        chooser.choose(asked("greedy"))


def test_a_resolver_that_does_not_end_is_ended_and_its_job_waits(
    environments: Environments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(Choices(environments), asked("lower"))
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o700)
    monkeypatch.setattr("gpu_scheduler.clusters.local.builder.find_uv", lambda: [str(slow)])
    with pytest.raises(ClusterBusy, match="could not be prepared"):
        answer(Choices(environments, limit_s=0.1), asked("upper"))


def test_a_resolver_has_limits_of_its_own(
    environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    popen = builder.subprocess.Popen
    monkeypatch.setattr(
        builder.subprocess, "Popen", lambda command, **more: (ran.append(command), popen(command, **more))[1]
    )
    answer(Choices(environments), asked("upper"))
    limited = [command for command in ran if f"--data={choices.MEMORY_BYTES}" in command]
    assert limited
    assert all("compile" in command for command in limited), "a runtime is made as ever"


def test_a_daemon_chooses_by_its_socket_and_knows_what_it_is_asked(index: Path) -> None:
    with running_daemon() as daemon:
        assert isinstance(daemon.cluster, ChoosesPackages)
        spec = EnvironmentSpec(runtime="fake", requirements=("upper",))
        assert answer(daemon.cluster, spec) == ("lower==1.0", "upper==1.5")
        with pytest.raises(LaunchRefused, match="no-such-package"):
            answer(daemon.cluster, EnvironmentSpec(runtime="fake", requirements=("no-such-package",)))
        with pytest.raises(ClusterBusy, match="This machine has no runtime other"):
            daemon.cluster.choose(EnvironmentSpec(runtime="other", requirements=("upper",)))
        with pytest.raises(ClusterError, match="is none of ping, ") as unknown:
            request(daemon.address, "of a later version")
        assert type(unknown.value) is ClusterError, (
            "no refusal: this is what an older daemon says of this verb"
        )


def test_a_cluster_without_a_node_daemon_does_not_choose() -> None:
    assert not isinstance(MemoryCluster(), ChoosesPackages)


@pytest.mark.parametrize(
    "value", [{}, {"runtime": "plain"}, {"requirements": ["x"]}, {"runtime": "plain", "what": 1}]
)
def test_a_request_that_says_too_little_is_named(value: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="environment: "):
        protocol.environment_from_json(value)
