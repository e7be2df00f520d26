"""MNIST in three frameworks: it learns, and a halted run ends with the same bits.

JAX always; Keras and PyTorch, whose runtimes are gigabytes to install, by `make test-long` (LUTHIER_LONG).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from examples.data.fetch import DATA_SETS, FetchError, fetch
from tests.examples.programs import BUILT, Program

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
DATA_ROOT = BUILT / "datasets"


@pytest.fixture(scope="session")
def data() -> Path:
    return fetch("mnist", DATA_ROOT)


@pytest.mark.parametrize(
    "framework", ["jax", "keras", "pytorch"] if os.environ.get("LUTHIER_LONG") else ["jax"]
)
def test_mnist_halted_twice_ends_in_the_same_bits(framework: str, data: Path, tmp_path: Path) -> None:
    arguments = ["train.py", "--epochs", "3", "--images", "12800", "--data", str(data)]
    straight = Program(tmp_path / "straight", f"mnist-{framework}", framework, arguments)
    halted = Program(tmp_path / "halted", f"mnist-{framework}", framework, arguments)
    straight.run(300)
    for until in (5, 20):  # of 300: a halt that a busy machine delays must still find it running
        halted.run_until(lambda until=until: any(p["step"] >= until for p in halted.reports()), 300)
        assert not halted.finished
    assert "resumed at step" in halted.run(300)
    scores = [(program.folder / "result" / "score.txt").read_text() for program in (straight, halted)]
    assert scores[0] == scores[1]
    resumed = [untimed(point) for point in halted.reports()]
    assert resumed == [untimed(point) for point in straight.reports()][-len(resumed) :]
    assert float(scores[0].split()[1]) > 0.85
    assert straight.reports()[-1]["accuracy"] > 0.85


def untimed(point: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in point.items() if name != "time"}


def test_fetched_data_is_checked_and_kept(data: Path) -> None:
    images = data / "t10k-images-idx3-ubyte"
    before = images.stat().st_mtime_ns
    assert fetch("mnist", DATA_ROOT) == data
    assert images.stat().st_mtime_ns == before
    assert {path.name for path in data.iterdir()} == {
        *(Path(p).name for p in DATA_SETS["mnist"].files),
        "ABOUT.txt",
    }


def test_the_error_for_damaged_data_names_the_remedy(data: Path, tmp_path: Path) -> None:
    for path in data.iterdir():
        (tmp_path / "mnist").mkdir(exist_ok=True)
        (tmp_path / "mnist" / path.name).write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FetchError, match="wrong SHA-256: remove the folder"):
        fetch("mnist", tmp_path)
