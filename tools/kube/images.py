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
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAUSE, AGENT, RUNTIME = "luthier.test/pause:1", "luthier.test/agent:1", "luthier.test/{runtime}:1"
SHELL = ("sh", "cat", "cp", "env", "ls", "mkdir", "rm", "sleep")
AGENT_PACKAGES = ("websockets", "msgspec", "uvloop")
PREFIX = Path("/usr/local")
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
    for name in SHELL:
        if found := shutil.which(name):
            files[Path("/usr/bin") / name] = Path(found).resolve()
    files |= _libraries(files)
    write(archive, names, files, {})


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
            _add(tar, str(inside.relative_to("/")), source.read_bytes(), 0o755 if executable else 0o644)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
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
    listed = subprocess.run(["ldd", *binaries], capture_output=True, text=True, timeout=60).stdout
    found: Files = {}
    for match in LIBRARY.finditer(listed):
        path = Path(match[1])
        inside = Path("/usr", *path.parts[1:]) if path.parts[1] in ("lib", "lib64") else path
        found[inside] = path.resolve()
    return found
