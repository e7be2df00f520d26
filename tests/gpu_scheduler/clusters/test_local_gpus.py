"""Which device files a learner may open, on file systems that look like those of machines with GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_scheduler.clusters.local.gpus import Gpu, Gpus, nvidia

TWO = (Gpu("0", "NVIDIA H200", "GPU-a", "0000:3b:00.0"), Gpu("1", "NVIDIA H200", "GPU-b", "0000:86:00.0"))
CONTROLS = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}


def made(root: Path, *names: str, text: str = "") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def files(gpus: Gpus, *devices: str) -> set[str]:
    return {str(path.relative_to(gpus.root / "dev")) for path in gpus.files(devices)}


def nvidia_machine(root: Path) -> Gpus:
    """The files of its second GPU have the number 0."""
    made(root, "dev/nvidiactl", "dev/nvidia0", "dev/nvidia1", "dev/dri/renderD128", "dev/dri/card0")
    for bus, minor in (("3b", 1), ("86", 0)):
        text = f"Model: \t x\nDevice Minor: \t {minor}\n"
        made(root, f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information", text=text)
    made(root / "sys/bus/pci/devices/0000:86:00.0/drm", "renderD129/dev", "card1/dev")
    return Gpus(TWO, root)


def test_a_learner_opens_the_files_of_its_gpus_and_what_controls_them(tmp_path: Path) -> None:
    gpus = nvidia_machine(tmp_path)
    assert files(gpus, "0") == CONTROLS | {"nvidia1"}
    assert files(gpus, "1") == CONTROLS | {"nvidia0", "dri/renderD129"}
    assert files(gpus, "0", "1") == CONTROLS | {"nvidia0", "nvidia1", "dri/renderD129"}
    assert files(gpus) == set(), "a learner without a GPU opens none of them"


def test_a_gpu_whose_number_is_not_known_has_that_of_its_index(tmp_path: Path) -> None:
    made(tmp_path, "dev/nvidiactl")
    assert files(Gpus((), tmp_path), "3") == CONTROLS | {"nvidia3"}
    assert files(Gpus(TWO, tmp_path), "1") == CONTROLS | {"nvidia1"}


def test_with_gpus_of_another_maker_a_learner_that_has_one_opens_each_and_no_display(tmp_path: Path) -> None:
    made(tmp_path, "dev/kfd", "dev/dri/renderD128", "dev/dri/renderD129", "dev/dri/card0")
    gpus = Gpus((), tmp_path)
    assert files(gpus, "1") == {"kfd", "dri/renderD128", "dri/renderD129"}
    assert files(gpus) == set()


def test_gpus_are_named_by_their_identities_if_all_are_known(tmp_path: Path) -> None:
    gpus = nvidia_machine(tmp_path)
    assert (gpus.names(["1", "0"]), gpus.names([])) == (["GPU-b", "GPU-a"], [])


def test_else_they_are_numbered_as_the_driver_numbers_what_can_be_opened(tmp_path: Path) -> None:
    made(tmp_path, "dev/nvidiactl")
    unknown = Gpus((), tmp_path)
    assert (unknown.names(["3"]), unknown.names(["2", "3"])) == (["0"], ["0", "1"]), "nvidia-smi was silent"
    assert Gpus(TWO, tmp_path).names(["1", "2"]) == ["0", "1"], "made up beyond those of the machine"


def test_gpus_of_another_maker_keep_their_numbers(tmp_path: Path) -> None:
    assert Gpus((), tmp_path).names(["1", "3"]) == ["1", "3"], "each program sees all of them"


@pytest.mark.parametrize(
    ("line", "gpu"),
    [
        ("0, NVIDIA H200, GPU-a, 00000000:3B:00.0", TWO[0]),
        ("0, NVIDIA H200, GPU-a, 00010000:3B:00.0", Gpu("0", "NVIDIA H200", "GPU-a", "10000:3b:00.0")),
        ("0, NVIDIA H200, GPU-a, [N/A]", Gpu("0", "NVIDIA H200", "GPU-a")),
        ("0, NVIDIA H200, GPU-a, x:y", Gpu("0", "NVIDIA H200", "GPU-a")),
        ("0, NVIDIA H200", Gpu("0", "NVIDIA H200")),
    ],
)
def test_what_nvidia_smi_says_is_read(
    line: str, gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho '{line}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert nvidia() == (gpu,)
