"""The workloads and measured profiles of the Pollux artifact (Qiao et al., OSDI 2021), for the simulator.

A job's work is the number of optimizer steps to its target at its batch size: what an epoch needs depends on how much
a step of this batch size is worth then (gradient statistics). Its rate is steps per second, as measured for how many of
its GPUs are on which node. So epochs need no events of their own while the batch size is fixed.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from gpu_scheduler.elastic.performance import Sample, gain
from gpu_scheduler.model import GradientNoise, Range

EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
MOST_PER_GPU = {"yolov3": 8}
"""The largest micro-batch, where the artifact sets it lower than the largest that was measured."""

Times = tuple[float, float]
"""Seconds of a step, and those of them in which it synchronizes."""
Curve = Sequence[tuple[float, Times]]
"""Times by micro-batch, sorted."""


@dataclass(frozen=True)
class Application:
    """One kind of training program as it was measured."""

    name: str
    folder: Path

    @cached_property
    def _validation(self) -> dict[int, list[dict[str, float]]]:
        """By batch size, a row per epoch: progress so far, gradient statistics."""
        found = {}
        for path in self.folder.glob("validation-*.csv"):
            found[int(path.stem.split("-")[1])] = _numbers(path)
        return dict(sorted(found.items()))

    @cached_property
    def _placed(self) -> dict[str, Curve]:
        """By placement, such as "24": two GPUs on one node and four on another."""
        curves: defaultdict[str, list[tuple[float, Times]]] = defaultdict(list)
        for row in _rows(self.folder / "placements.csv"):
            curves[row["placement"]].append(_point(row))
        return {placement: sorted(curve) for placement, curve in curves.items()}

    @cached_property
    def _sized(self) -> dict[int, dict[int, Curve]]:
        """By nodes and GPUs, the mean of the placements of this size."""
        points: defaultdict[tuple[int, int, float], list[Times]] = defaultdict(list)
        for placement, curve in self._placed.items():
            for batch, times in curve:
                points[len(placement), sum(map(int, placement)), batch].append(times)
        for row in _rows(self.folder / "scalability.csv"):
            batch, times = _point(row)
            points[int(row["num_nodes"]), int(row["num_replicas"]), batch].append(times)
        found: defaultdict[int, defaultdict[int, list[tuple[float, Times]]]]
        found = defaultdict(lambda: defaultdict(list))
        for (nodes, gpus, batch), measured in sorted(points.items()):
            mean = tuple(sum(each) / len(measured) for each in zip(*measured, strict=True))
            found[nodes][gpus].append((batch, (mean[0], mean[1])))
        return {nodes: dict(by_gpus) for nodes, by_gpus in found.items()}

    @property
    def batches(self) -> Range:
        """The batches with which training was validated."""
        return Range(min(self._validation), max(self._validation))

    @property
    def most_per_gpu(self) -> int:
        """The largest micro-batch."""
        return MOST_PER_GPU.get(self.name) or int(max(size for size, _ in self._placed["1"]))

    @cached_property
    def progress(self) -> list[float]:
        """By epoch, the useful steps of the smallest batch up to its end."""
        epochs = range(EPOCHS[self.name])
        return [min(rows[epoch]["progress"] for rows in self._validation.values()) for epoch in epochs]

    def epoch_at(self, progress: float) -> int:
        return min(bisect_right(self.progress, progress + 1e-9), len(self.progress) - 1)

    def noise(self, batch: int, epoch: int) -> GradientNoise:
        """What a program reports of its gradients in this epoch."""
        squared, variance = self._gradients(batch, epoch)
        return GradientNoise(variance, squared, self.batches.min)

    def sample(self, placement: Sequence[int], batch: int) -> Sample:
        """What a program measures of its steps."""
        gpus = sum(placement)
        micro, accumulated = self.split(gpus, batch)
        step_s, sync_s = self._times(tuple(placement), micro)
        whole_s = step_s + accumulated * (step_s - sync_s)
        return Sample(gpus, len(placement), micro, accumulated, whole_s, step_s - sync_s)

    def useful_steps_per_s(self, placement: Sequence[int], batch: int, epoch: int) -> float:
        """Progress in a second."""
        micro, accumulated = self.split(sum(placement), batch)
        total = sum(placement) * micro * (accumulated + 1)
        worth = gain(self.noise(total, epoch), total, self.batches.min)
        return worth * self.steps_per_s(placement, batch)

    def samples_per_s(self, placement: Sequence[int], batch: int) -> float:
        """Without accumulating gradients; 0 if a GPU cannot hold its part of the batch."""
        micro = -(-batch // sum(placement))
        if micro > self.most_per_gpu:
            return 0.0
        step_s, _ = self._times(tuple(placement), micro)
        return batch / step_s

    def split(self, gpus: int, batch: int) -> tuple[int, int]:
        """A GPU's micro-batch, and how many times it accumulates gradients before it synchronizes."""
        most = self.most_per_gpu
        local = math.ceil(batch / gpus - 1e-8)
        accumulated = math.ceil(local / most - 1e-8) - 1
        if gpus == 1 and batch > min(self._validation):
            accumulated = max(1, accumulated)
        micro = math.ceil(local / (accumulated + 1) - 1e-8)
        return min(micro, max(self._validation) // (gpus * (accumulated + 1))), accumulated

    def steps_per_s(self, placement: Sequence[int], batch: int) -> float:
        """placement: GPUs on each node, in the order of ranks."""
        micro, accumulated = self.split(sum(placement), batch)
        step_s, sync_s = self._times(tuple(placement), micro)
        return 1 / (step_s + accumulated * (step_s - sync_s))

    def _times(self, placement: tuple[int, ...], micro: int) -> Times:
        rotated = min(placement[at:] + placement[:at] for at in range(len(placement)))
        measured = self._placed.get("".join(map(str, rotated)))
        if measured:
            return _between(measured, micro)
        by_nodes = [
            (
                float(nodes),
                _between([(float(n), _between(c, micro)) for n, c in by_gpus.items()], sum(placement)),
            )
            for nodes, by_gpus in self._sized.items()
            if min(by_gpus) <= sum(placement) <= max(by_gpus)
        ]
        return _between(by_nodes, len(placement))

    def steps(self, gpus: int, batch: int) -> float:
        """Optimizer steps to the target."""
        micro, accumulated = self.split(gpus, batch)
        total = gpus * micro * (accumulated + 1)
        steps = before = 0.0
        for epoch, progress in enumerate(self.progress):
            steps += (progress - before) / gain(self.noise(total, epoch), total, self.batches.min)
            before = progress
        return steps

    def _gradients(self, batch: int, epoch: int) -> Times:
        """Squared norm and variance of the gradients."""
        rows = {size: epochs[epoch] for size, epochs in self._validation.items()}
        return _between([(size, (row["grad_sqr"], row["grad_var"])) for size, row in rows.items()], batch)


@cache
def application(name: str, folder: Path) -> Application:
    return Application(name, folder / "pollux" / "traces" / name)


def placement_of(nodes: Sequence[str]) -> tuple[int, ...]:
    """GPUs on each node, from a node's name per rank."""
    return tuple(Counter(nodes).values())


def _between(points: Sequence[tuple[float, Times]], x: float) -> Times:
    """Linear between the nearest points; beyond the last ones, theirs."""
    at = bisect_right(points, x, key=lambda point: point[0])
    if at == 0 or at == len(points):
        return points[min(at, len(points) - 1)][1]
    (x0, y0), (x1, y1) = points[at - 1], points[at]
    part = (x - x0) / (x1 - x0)
    return (y0[0] + part * (y1[0] - y0[0]), y0[1] + part * (y1[1] - y0[1]))


def _rows(path: Path) -> list[Mapping[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _numbers(path: Path) -> list[dict[str, float]]:
    return [{name: float(value) for name, value in row.items()} for row in _rows(path)]


def _point(row: Mapping[str, str]) -> tuple[float, Times]:
    return float(row["local_bsz"]), (float(row["step_time"]), float(row["sync_time"]))
