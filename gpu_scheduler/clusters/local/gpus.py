"""This machine's GPUs: their names and addresses, and the device files that a learner with some of them may open.

A program that cannot open the file of a GPU does not see that GPU, and the drivers number what it sees from 0. So where
device files are kept apart, CUDA_VISIBLE_DEVICES has the GPUs' own identities, which mean the same either way.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ASK_S = 20.0
COLUMNS = ("index", "name", "uuid", "pci.bus_id")
CONTROLS = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
"""What each program with an NVIDIA GPU opens beside that GPU's own file; none of them gives it another GPU."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """As nvidia-smi describes it. bus: its PCI address as Linux writes it; it and uuid are empty if unknown."""

    index: str
    model: str
    uuid: str = ""
    bus: str = ""


@dataclass(frozen=True, slots=True)
class Gpus:
    """The NVIDIA GPUs of this machine, which `devices` of learners name. root: of its file system."""

    found: tuple[Gpu, ...] = ()
    root: Path = Path("/")

    def files(self, devices: Sequence[str]) -> list[Path]:
        """The device files of a learner that has these GPUs, named as CUDA_VISIBLE_DEVICES does; a file may be missing.

        AMD's driver has one device for all GPUs, which other drivers lack: a learner that has a GPU there opens each.
        """
        if not devices:
            return []
        folder = self.root / "dev"
        if not self._are_kept_apart():
            return [folder / "kfd", *sorted((folder / "dri").glob("renderD*"))]
        return [*(folder / name for name in CONTROLS), *(path for name in devices for path in self._of(name))]

    def names(self, devices: Sequence[str]) -> list[str]:
        """What names them to a program that opens only `files`: their own identities, or if one is not known, as where
        nvidia-smi did not answer, the numbers that the driver gives what can be opened."""
        known = {gpu.index: gpu.uuid for gpu in self.found if gpu.uuid}
        if set(devices) <= known.keys():
            return [known[name] for name in devices]
        return [str(n) for n in range(len(devices))] if self._are_kept_apart() else list(devices)

    def _are_kept_apart(self) -> bool:
        """Whether each GPU has a device file of its own."""
        return (self.root / "dev" / CONTROLS[0]).exists()

    def _of(self, name: str) -> Iterator[Path]:
        gpu = next((gpu for gpu in self.found if gpu.index == name), Gpu(name, ""))
        yield self.root / "dev" / f"nvidia{self._minor(gpu)}"
        if gpu.bus:
            for node in (self.root / "sys" / "bus" / "pci" / "devices" / gpu.bus / "drm").glob("renderD*"):
                yield self.root / "dev" / "dri" / node.name

    def _minor(self, gpu: Gpu) -> str:
        """The number of its device file, which is mostly, but not always, its index."""
        information = self.root / "proc" / "driver" / "nvidia" / "gpus" / gpu.bus / "information"
        try:
            lines = information.read_text().splitlines() if gpu.bus else []
        except OSError:
            lines = []
        values = (line.partition(":") for line in lines)
        return next((value.strip() for name, _, value in values if name == "Device Minor"), gpu.index)


NO_GPUS = Gpus()


def nvidia() -> tuple[Gpu, ...]:
    """What nvidia-smi finds; nothing where there is no driver, or it does not answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    try:
        answer = subprocess.run(
            [tool, f"--query-gpu={','.join(COLUMNS)}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(_gpu(line) for line in answer.stdout.splitlines() if "," in line)


def _gpu(line: str) -> Gpu:
    index, model, uuid, bus, *_ = (*(part.strip() for part in line.split(",")), "", "")
    domain, _, rest = bus.lower().partition(":")
    try:
        return Gpu(index, model, uuid, f"{int(domain, 16):04x}:{rest}" if rest else "")
    except ValueError:  # not an address
        return Gpu(index, model, uuid)
