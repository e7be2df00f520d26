"""A checkpoint that a job saves into an S3 store and restores in its next attempt, and copies of the same file.

Everything is on one disk of one machine: the job's folders, the store's (versitygw) and the copies. A save begins when
the program has its file and manifest on the disk, and ends when the platform calls the checkpoint committed and the
store's object is flushed to the disk; it is compared with cp of that file, flushed by fsync. Both read a file that is
in the page cache, as one that was just written is. A restore begins when the next attempt makes the file into which it
fetches, and ends when its program runs and the file is flushed; it is compared with cp of the store's object, flushed
by fsync. Both read a file that is not in the page cache. plain_upload and plain_download are the same by boto3 with its
own defaults: what the store gives a usual client on these cores, which hash and copy for both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import boto3

from bench.record import percentile, record
from tests.platform import Client, Platform, running, wait_for
from tools.kube import binaries
from tools.kube.s3 import BUCKET, S3Server

MIB = 2**20
WITHIN_S = 1800
PLAIN = "plain"
PROGRAM = """
import os, sys, time
from pathlib import Path
from learner_agent import training
notes, size = Path(sys.argv[1]), int(sys.argv[2])
if training.resume_from():
    (notes / "restored").write_text(str(time.time()))
else:
    block = os.urandom(1 << 20)
    with training.checkpoint(1) as folder:
        with (folder / "weights").open("wb") as file:
            for start in range(0, size, len(block)):
                file.write((start.to_bytes(8, "big") + block[8:])[: size - start])
        (notes / "written").write_text(str(time.time()))
    (notes / "saved").write_text(str(time.time()))
while not training.halt_requested():
    time.sleep(0.05)
"""
"""What it writes is different each time: the platform does not send what the store has already."""


def job(notes: Path, size: int) -> dict[str, Any]:
    return {
        "apiVersion": "luthier/v1",
        "name": "checkpoint",
        "framework": "plain",
        "code": {"files": {"main.py": PROGRAM}},
        "command": f"python main.py {notes} {size}",
        "resources": {"learners": 1, "gpus": 0, "cpus": 1, "memory": "1Gi"},
        "checkpoint": {"keep": 1},
    }


class Round:
    """One job's save and restore, and the copies of the same bytes. size: of the checkpoint, in bytes."""

    def __init__(self, platform: Platform, s3: S3Server, folder: Path, size: int) -> None:
        self._platform, self._s3, self._folder, self._size = platform, s3, folder, size
        self._client = platform.client()
        self._notes = platform.meeting / f"round-{time.time_ns()}"
        self._notes.mkdir()
        self._notes.chmod(0o777)
        self.seconds: dict[str, float] = {}

    def run(self) -> dict[str, float]:
        """Seconds of each part."""
        made = self._client.submit(job(self._notes, self._size))["id"]
        saved_at = self._noted("saved")
        self.seconds["sealing_s"] = saved_at - self._noted("written")
        wait_for(lambda: is_committed(self._client, made), within_s=WITHIN_S, every_s=0.02, what="the commit")
        committed_at = time.time()
        [stored], [weights] = (
            files_of(self._folder / "s3", self._size),
            files_of(self._platform.data, self._size),
        )
        self.seconds["save_s"] = committed_at - saved_at + flushed(stored)
        self._beside("copy_of_saved_s", lambda target: copy(weights, target), warm=weights)
        self._beside("plain_upload_s", lambda target: self._upload(weights), warm=weights)
        self._client.post(f"/jobs/{made}/halt")
        self._client.wait_state(made, "HALTED", within_s=WITHIN_S)
        make_cold(stored)
        self._client.post(f"/jobs/{made}/resume")
        fetched_from = self._fetched_from(made)
        restored_at = self._noted("restored")
        [back] = files_of(self._platform.data, self._size)
        self.seconds["restore_s"] = restored_at - fetched_from + flushed(back)
        self._beside("copy_of_stored_s", lambda target: copy(stored, target), cold=stored)
        self._beside("plain_download_s", lambda target: self._download(stored, target), cold=stored)
        self._client.post(f"/jobs/{made}/cancel")
        self._client.wait_state(made, "CANCELED", within_s=WITHIN_S)  # which removes its folders
        stored.unlink()
        return self.seconds

    def _noted(self, what: str) -> float:
        """The time of day that the program noted."""
        note = self._notes / what
        wait_for(
            lambda: note.exists() and note.read_text(), within_s=WITHIN_S, every_s=0.02, what=f"it {what}"
        )
        return float(note.read_text())

    def _fetched_from(self, made: str) -> float:
        """When the next attempt made the file into which it fetches."""
        place = f"nodes/*/job-{made}-2-0/state/checkpoints/step-1/weights*"
        wait_for(lambda: any(self._platform.data.glob(place)), within_s=120, every_s=0.01, what=place)
        return time.time()

    def _beside(
        self,
        name: str,
        work: Callable[[Path], None],
        *,
        warm: Path | None = None,
        cold: Path | None = None,
    ) -> None:
        """Take the time of work, which writes to the path that it gets. What it reads is in the page cache, or not."""
        target = self._folder / "copied"
        if warm is not None:
            copy(warm, Path(os.devnull))
        if cold is not None:
            make_cold(cold)
        began = time.monotonic()
        work(target)
        self.seconds[name] = time.monotonic() - began
        target.unlink(missing_ok=True)

    def _upload(self, source: Path) -> None:
        store(self._s3).upload_file(str(source), BUCKET, PLAIN)
        object_ = self._folder / "s3" / "root" / BUCKET / PLAIN
        flushed(object_)
        object_.unlink()

    def _download(self, source: Path, target: Path) -> None:
        key = source.relative_to(self._folder / "s3" / "root" / BUCKET)
        store(self._s3).download_file(BUCKET, str(key), str(target))
        flushed(target)


def store(s3: S3Server) -> Any:
    names = {"region_name": "AWS_REGION", "endpoint_url": "AWS_ENDPOINT_URL"}
    names |= {"aws_access_key_id": "AWS_ACCESS_KEY_ID", "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY"}
    return boto3.client("s3", **{name: s3.environment[variable] for name, variable in names.items()})


def is_committed(client: Client, made: str) -> bool:
    return any(each["state"] == "COMMITTED" for each in client.get(f"/jobs/{made}/checkpoints")["items"])


def files_of(root: Path, size: int) -> list[Path]:
    """Files below root with exactly so many bytes."""
    found = []
    for place, _, names in os.walk(root):
        for name in names:
            with suppress(OSError):
                path = Path(place, name)
                if path.is_file() and not path.is_symlink() and path.stat().st_size == size:
                    found.append(path)
    return found


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "--reflink=never", "--sparse=never", str(source), str(target)], check=True)
    if target != Path(os.devnull):
        flushed(target)


def flushed(path: Path) -> float:
    """Have a file on the disk. Returns the seconds that it took."""
    began = time.monotonic()
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return time.monotonic() - began


def make_cold(path: Path) -> None:
    """Take a file out of this machine's page cache. It is read once before, so that what is below a virtual disk has
    cached the same for whatever reads it next."""
    forget(path)
    copy(path, Path(os.devnull))
    forget(path)


def forget(path: Path) -> None:
    flushed(path)
    handle = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


@contextmanager
def platform_with_store(folder: Path) -> Iterator[tuple[Platform, S3Server]]:
    place = folder / "s3"
    place.mkdir()
    s3 = S3Server(place, binaries.build())
    s3.start()
    try:
        with running(folder / "data", LUTHIER_BLOBS=s3.place, **s3.environment) as platform:
            yield platform, s3
    finally:
        s3.stop()


def figures(rounds: Sequence[Mapping[str, float]], size: int) -> dict[str, float]:
    """Rates in MB/s, of medians."""
    median = {name: percentile([each[name] for each in rounds], 0.5) for name in rounds[0]}
    rates = {f"{name.removesuffix('_s')}_mb_per_s": size / 1e6 / took for name, took in median.items()}
    return {
        "save_share_of_copy": median["copy_of_saved_s"] / median["save_s"],
        "restore_share_of_copy": median["copy_of_stored_s"] / median["restore_s"],
        "save_share_of_plain_upload": median["plain_upload_s"] / median["save_s"],
        "restore_share_of_plain_download": median["plain_download_s"] / median["restore_s"],
        **rates,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gb", type=float, default=5, help="of the checkpoint, in 10^9 bytes")
    arguments.add_argument("--runs", type=int, default=3)
    arguments.add_argument("--folder", help="on the disk that is measured; default: the temporary folder")
    arguments.add_argument("--record", action="store_true", help="keep the figures")
    chosen = arguments.parse_args()
    size = int(chosen.gb * 1e9)
    room = shutil.disk_usage(chosen.folder or tempfile.gettempdir()).free
    if room < 6 * size:
        arguments.error(f"the disk has {room / 1e9:.1f} GB free; this needs {6 * size / 1e9:.1f} GB")
    with (
        tempfile.TemporaryDirectory(dir=chosen.folder) as folder,
        platform_with_store(Path(folder)) as (platform, s3),
    ):
        rounds = []
        for number in range(chosen.runs):
            rounds.append(Round(platform, s3, Path(folder), size).run())
            print(number + 1, {name: round(took, 2) for name, took in rounds[-1].items()}, flush=True)
    found = figures(rounds, size) | {"gb": chosen.gb, "runs": chosen.runs, "load_average": os.getloadavg()[0]}
    if not chosen.record:
        print(json.dumps(found, indent=2))
        return
    record(
        "checkpoint_store",
        found,
        command=f"python -m bench.checkpoint_store --gb {chosen.gb:g} --runs {chosen.runs} --record",
        baseline="cp and fsync of the same file on the same disk, in the same run",
        targets={"save_share_of_copy": "≥ 0.8", "restore_share_of_copy": "≥ 0.8"},
    )


if __name__ == "__main__":
    main()
