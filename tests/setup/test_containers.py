"""docker-compose.yml and the Dockerfile, read as data: no engine is needed to see that what they name exists."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
import yaml
from django.core.management import get_commands
from django.db import connection

from portal.settings.env import Environment

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service.get("image") == "luthier"]
DOCKERFILE = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
WITHOUT_DEMO = {"portal/demo.py", "portal/management/commands/demo.py"}
OTHER_VARIABLES = {"PATH", "PYTHONUNBUFFERED", "MALLOC_ARENA_MAX", "XDG_RUNTIME_DIR"}


def known_command(command: list[str]) -> bool:
    """Whether the first words of a command name something that the environment or manage.py really has."""
    program, *arguments = command
    if program == "python" and arguments[0] == "manage.py":
        return arguments[1] in get_commands()
    if program == "python" and arguments[0] == "-m":
        return find_spec(arguments[1]) is not None
    if program == "python" and arguments[0].endswith(".py"):
        return (ROOT / arguments[0]).exists()
    return program == "python" or (Path(sys.prefix) / "bin" / program).exists()


@pytest.mark.parametrize("name", OURS)
def test_every_command_of_compose_exists(name: str) -> None:
    command = SERVICES[name].get("command")
    assert command is None or known_command(command), command


def test_the_same_services_are_there_as_manage_up_starts() -> None:
    assert {"db", "broker", "prepare", "web", "nodes", "worker", "scheduler"} == set(SERVICES)


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_one_we_read(name: str) -> None:
    known = {field.name.upper() for field in fields(Environment)}
    assert set(SERVICES[name]["environment"]) <= known


def test_every_volume_and_dependency_is_declared() -> None:
    for service in SERVICES.values():
        named = {volume.split(":")[0] for volume in service.get("volumes", [])}
        assert named <= set(COMPOSE["volumes"])
        assert set(service.get("depends_on", {})) <= set(SERVICES)


def test_programs_are_kept_from_the_platforms_secrets_files_and_servers() -> None:
    def of(name: str, key: str) -> set[str]:
        return {each.split(":")[0] for each in SERVICES[name].get(key, [])}

    assert set(SERVICES["nodes"]["environment"]) == {
        "LUTHIER_NODE_DIR",
        "LUTHIER_LOCAL_SANDBOX",
        "LOCAL_NODES",
    }
    assert of("nodes", "volumes") & (of("web", "volumes") | of("db", "volumes")) == {"datasets", "node"}
    assert "datasets:/data/datasets:ro" in SERVICES["nodes"]["volumes"]
    assert {name for name in SERVICES if of(name, "networks") & of("nodes", "networks")} == {"nodes", "web"}
    assert all(of(name, "networks") <= set(COMPOSE["networks"]) for name in SERVICES)
    places = {SERVICES[name]["environment"]["LUTHIER_NODE_DIR"] for name in ("nodes", "web", "worker")}
    assert len(places) == 1, "they meet there"


def test_images_of_others_are_named_by_version_and_digest() -> None:
    built = re.findall(r"^ARG PYTHON=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${PYTHON}"}
    named = [*built, *(SERVICES[name]["image"] for name in SERVICES if name not in OURS)]
    assert len(named) == 3
    assert [
        name for name in named if not re.fullmatch(r"[a-z/]+:\d+\.\d[\w.-]*@sha256:[0-9a-f]{64}", name)
    ] == []


def test_web_is_published_on_loopback_only() -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["web"]["ports"])


def test_the_image_copies_only_what_exists() -> None:
    made_by_the_build = {".venv"}
    for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE):
        *sources, _ = [word for word in shlex.split(line) if not word.startswith("--")]
        for source in sources:
            relative = source.removeprefix("/luthier/")
            assert relative in made_by_the_build or (ROOT / relative).exists(), line


def test_every_command_of_the_image_exists() -> None:
    command = yaml.safe_load(re.findall(r"^CMD (.+)$", DOCKERFILE, re.MULTILINE)[-1])
    assert known_command(command)
    for run in re.findall(r"^RUN (.+)$", DOCKERFILE, re.MULTILINE):
        for part in run.split("&&"):
            words = shlex.split(part.strip())
            if Path(words[0]).name == "python":
                assert known_command(["python", *words[1:]]), part


def test_the_image_sets_only_variables_we_read() -> None:
    known = {field.name.upper() for field in fields(Environment)} | OTHER_VARIABLES
    for line in re.findall(r"^ENV (.+)$", DOCKERFILE, re.MULTILINE):
        assert {word.split("=")[0] for word in shlex.split(line)} <= known


def test_the_image_does_not_run_as_root() -> None:
    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE) == ["luthier"]


def test_the_web_server_is_started_as_up_starts_it() -> None:
    """Limits that protect the server must not be forgotten in one of the two places."""
    from portal.settings.embedded import layout
    from portal.supervisor.plan import Options, start_plan

    plan = start_plan(Options(), Environment(), port=8000)
    image = yaml.safe_load(re.findall(r"^CMD (.+)$", DOCKERFILE, re.MULTILINE)[-1])
    assert plan.layout == layout(Environment().luthier_data)
    assert plan.web[0].command[1:3] == image[1:3] == ["-m", "portal.web"]


def test_the_image_has_neither_tests_nor_development_tools_nor_the_demo() -> None:
    before, _, final = DOCKERFILE.rpartition("\nFROM ")
    code = before.partition(" AS code\n")[2]
    copied = {word for line in re.findall(r"^COPY (.+)$", final, re.MULTILINE) for word in line.split()[:-1]}
    assert {"--from=code", "/luthier/portal"} <= copied
    assert not copied & {".", "portal", "tests", "bench", "tools", ".ci"}
    assert "ARG WITH_DEMO=no\n" in code, "who tries it out asks for the demo"
    assert "rm " not in final, "what a later layer removes stays readable in the one below"
    (removed,) = re.findall(r'^RUN \[ "\$WITH_DEMO" = yes \] \|\| rm (.+)$', code, re.MULTILINE)
    assert {path for path in removed.split() if (ROOT / path).exists()} == WITHOUT_DEMO
    assert SERVICES["web"]["build"]["args"] == {"WITH_DEMO": "${WITH_DEMO:-no}"}


def test_an_image_without_the_demo_prepares_its_database(transactional_db: None, tmp_path: Path) -> None:
    """In a copy of what the image has, on an empty database."""
    hidden = shutil.ignore_patterns("__pycache__")
    for folder in ("portal", "tenants", "jobs", "gpu_scheduler", "learner_agent", "examples", "templates"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=hidden)
    shutil.copy(ROOT / "manage.py", tmp_path)
    for path in WITHOUT_DEMO:
        (tmp_path / path).unlink()
    name = f"without_demo_{os.getpid()}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    try:
        url = urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))
        env = os.environ | {"DATABASE_URL": url, "LUTHIER_DATA": str(tmp_path / "data")}

        def run(command: str) -> str:
            return subprocess.run(
                [sys.executable, "manage.py", command],
                cwd=tmp_path, env=env, capture_output=True, text=True, check=True, timeout=120,
            ).stdout  # fmt: skip

        commands = run("help").split()
        assert "prepare" in commands
        assert "demo" not in commands, "the copy is what runs"
        run("check")
        assert run("prepare").splitlines()[-1] == "{}"
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")
