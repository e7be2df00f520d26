"""Links that a program puts in the place of files and folders, at any time: nothing behind them is ever read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from learner_agent.shipper.metrics.tensorboard import TensorBoard
from learner_agent.shipper.outputs import (
    FileSet,
    LinkedFolder,
    find_checkpoints,
    gather,
    prune,
    read_checkpoint,
)
from learner_agent.shipper.results import collect
from learner_agent.spool import Spool
from learner_agent.training import checkpoint
from learner_agent.untrusted_files import open_below, open_regular, read_object

SECRET = b"another job's secret"
OWN = b"own"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job's folder, beside that of another one, in which every name has the secret."""
    for folder in ("results/sub", "state/checkpoints", "state/shipper", "state/log", "code"):
        (tmp_path / "job" / folder).mkdir(parents=True)
    for folder in ("other", "other/sub", "other/results", "other/results/sub", "other/log"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_bytes(SECRET)
        (tmp_path / folder / "exit").write_bytes(b'{"secret": 1}')
    return tmp_path / "job"


def collected(job: Path, *keep: str) -> FileSet | None:
    return collect(
        job / "results", job / "code", keep=keep, into=job / "state/shipper", world=1, stored_before=False
    ).files


def replace_by_link(place: Path, target: Path) -> None:
    place.rename(f"{place}.moved")
    place.symlink_to(target)


@pytest.mark.parametrize("linked", ["results", ""])
def test_linked_results_are_an_error_that_says_so(job: Path, linked: str) -> None:
    replace_by_link(job / linked, job.parent / "other")
    with pytest.raises(
        LinkedFolder, match=r"results is a link, or in one\. The program must write into the folder"
    ):
        collected(job)
    with pytest.raises(LinkedFolder):
        gather(job / "results", what="results", world=1)


def test_a_linked_code_folder_is_an_error_if_files_of_it_are_kept(job: Path) -> None:
    replace_by_link(job / "code", job.parent / "other")
    (job / "results/file").write_bytes(OWN)
    with pytest.raises(LinkedFolder):
        collected(job, "file")
    found = collected(job)
    assert found is not None
    assert [path for path, _, _ in found.offer.files] == ["file"]


def test_a_link_to_a_checkpoint_folder_has_no_checkpoints(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = job / "state/checkpoints"
    monkeypatch.setenv("CHECKPOINT_DIR", str(base))
    with checkpoint(1) as folder:
        (folder / "file").write_bytes(OWN)
    (manifest,) = find_checkpoints(base)
    replace_by_link(base, job.parent / "other")
    assert find_checkpoints(base) == []
    with pytest.raises(Exception, match=r"is not a manifest"):
        read_checkpoint(manifest, base)


def test_checkpoints_of_others_are_not_removed_through_a_link(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = job / "state/checkpoints"
    monkeypatch.setenv("CHECKPOINT_DIR", str(base))
    for step in (1, 2, 3):
        with checkpoint(step) as folder:
            (folder / "file").write_bytes(OWN)
    keys = []
    for manifest in find_checkpoints(base):
        found = read_checkpoint(manifest, base)
        assert found is not None
        keys.append(found.key)
    replace_by_link(base, base.parent / "checkpoints.moved")
    prune(base, keys, keep=1)
    assert len(list((base.parent / "checkpoints.moved").iterdir())) == 3


def test_event_files_behind_a_link_are_not_read(job: Path) -> None:
    (job.parent / "other/events.out.tfevents.1").write_bytes(SECRET)
    replace_by_link(job / "results", job.parent / "other")
    assert TensorBoard(Spool(job / "state"), [job / "results"]).read() is None


@pytest.mark.parametrize("linked", ["state", "state/log", "state/exit"])
def test_the_spool_is_read_through_no_link(job: Path, linked: str) -> None:
    (job / "state/exit").write_bytes(b"{}")
    (job / "state/log/file").write_bytes(OWN)
    replace_by_link(job / linked, job.parent / "other" / ("exit" if linked.endswith("exit") else ""))
    if linked != "state/log":
        assert read_object(str(job / "state/exit")) is None
    if linked != "state/exit":
        with pytest.raises(OSError):
            open_regular(str(job / "state/log/file"))


@contextmanager
def swapping(*swaps: Callable[[], None]) -> Iterator[None]:
    """Make each change again and again, as fast as possible, beside the block."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            for swap in swaps:
                swap()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("place", ["results/sub/file", "results/sub", "results"])
def test_a_place_that_is_swapped_all_the_time_shows_its_own_content_or_nothing(job: Path, place: str) -> None:
    own, link = Path(f"{job / place}.own"), Path(f"{job / place}.link")
    (job / "results/sub/file").write_bytes(OWN)
    (job / place).rename(own)
    link.symlink_to(job.parent / "other" / place.removeprefix("results").removeprefix("/"))
    target = job / place

    def put(source: Path) -> Callable[[], None]:
        return lambda: (source.rename(target).rename(source), None)[1]

    seen = set()
    with swapping(put(own), put(link)):
        for _ in range(3_000):
            try:
                with open(open_below(job / "results", "sub", "file"), "rb") as source:
                    seen.add(source.read())
            except OSError:
                seen.add(b"")
    assert SECRET not in seen
    assert seen <= {OWN, b""}


def test_what_was_described_and_swapped_for_a_link_before_it_is_sent_is_not_sent(job: Path) -> None:
    (job / "results/sub/file").write_bytes(OWN)
    found = collected(job)
    assert found is not None
    replace_by_link(job / "results/sub", job.parent / "other/sub")
    with pytest.raises(OSError):
        found.open(0)


def test_an_open_file_stays_the_one_that_was_opened(job: Path) -> None:
    (job / "results/sub/file").write_bytes(OWN)
    found = collected(job)
    assert found is not None
    with found.open(0) as source:
        replace_by_link(job / "results", job.parent / "other/results")
        assert source.read() == OWN
