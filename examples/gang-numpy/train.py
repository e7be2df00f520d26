"""Several learners train one network together: each takes its share of every batch, and the gradients are summed.

The learners connect at MASTER_ADDR:MASTER_PORT. Rank 0 adds up what the others send, in the order of their ranks, so
that the sum is the same in every run, and sends it back together with whether any learner was requested to halt. So
all of them stop after the same step. Only rank 0 saves; on a resume it sends its state to the others.
"""

import json
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread, so that sums are made in the same order
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from gang import Gang, PeerLost
from network import accuracy, fresh, gradient, split
from sklearn.datasets import load_digits

from learner_agent import training

STEPS = int(os.environ.get("STEPS", "400"))
STEP_S = float(os.environ.get("STEP_S", "0"))
BATCH_S = float(os.environ.get("BATCH_S", "0"))
"""Seconds that one learner waits for 64 samples, as if the network were a larger one; each waits for its own."""
USUAL_BATCH, MOMENTUM, SEED = 64, 0.9, 7
BATCH = (
    training.batch_size() or USUAL_BATCH
)  # of an elastic job with a range of batches, the platform's choice
RATE = 0.1 * (BATCH / USUAL_BATCH) ** 0.5


def main() -> None:
    images, labels = load_data()
    with Gang.connect(training.rank(), training.world_size()) as gang:
        print(f"rank {gang.rank} of {gang.size}: all learners are connected", flush=True)
        if training.batch_size():
            print(f"rank {gang.rank}: batch {BATCH}, {training.micro_batch_size()} at once", flush=True)
        state, step = agree_on_start(gang)
        halted = train(gang, state, step, images[:1500], labels[:1500])
        if not halted:
            finish(gang, state, images[1500:], labels[1500:])


def train(gang: Gang, state: np.ndarray, step: int, images: np.ndarray, labels: np.ndarray) -> bool:
    """Train in place until the last step or a halt; return whether it was halted. state: weights and velocity."""
    weights, velocity = state
    while step < STEPS:
        batch = np.random.default_rng([SEED, step]).integers(len(images), size=BATCH)
        mine = batch[gang.rank :: gang.size]
        slope, loss = in_parts(weights, images[mine], labels[mine])
        sums, halt = gang.sum(np.append(slope, loss), training.halt_requested())
        velocity[:] = MOMENTUM * velocity - RATE * sums[:-1] / BATCH
        weights += velocity
        step += 1
        training.report(step, total=STEPS, loss=float(sums[-1]) / BATCH)
        if step % 20 == 0:
            print(f"rank {gang.rank}: step {step} loss {sums[-1] / BATCH:.4f}", flush=True)
        if gang.rank == 0 and (halt or step == STEPS or training.checkpoint_due()):
            save(state, step)
        if halt:
            print(f"rank {gang.rank}: halted after step {step}", flush=True)
            return True
        time.sleep(STEP_S + BATCH_S * len(mine) / USUAL_BATCH)
    return False


def in_parts(weights: np.ndarray, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float]:
    """The gradient and the loss, summed over as many samples at once as the platform says."""
    at_once = training.micro_batch_size() or max(1, len(images))
    parts = range(0, max(1, len(images)), at_once)
    found = [gradient(weights, images[n : n + at_once], labels[n : n + at_once]) for n in parts]
    return sum(slope for slope, _ in found), sum(loss for _, loss in found)


def load_data() -> tuple[np.ndarray, np.ndarray]:
    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.data))
    return digits.data[order] / 16.0, digits.target[order]


def agree_on_start(gang: Gang) -> tuple[np.ndarray, int]:
    """Rank 0 reads the checkpoint, or starts from scratch; all learners continue from its state and step."""
    weights = fresh(SEED)
    state, step = np.array([weights, np.zeros_like(weights)]), 0
    folder = training.resume_from()
    if gang.rank == 0 and folder is not None:
        with np.load(folder / "state.npz") as saved:
            state, step = saved["state"], int(saved["step"])
    agreed = gang.broadcast(np.append(state.ravel(), step))
    if agreed[-1]:
        print(f"rank {gang.rank}: resumed at step {int(agreed[-1])}", flush=True)
    return agreed[:-1].reshape(state.shape).copy(), int(agreed[-1])


def save(state: np.ndarray, step: int) -> None:
    with training.checkpoint(step) as folder:
        np.savez(folder / "state.npz", state=state, step=step)


def finish(gang: Gang, state: np.ndarray, images: np.ndarray, labels: np.ndarray) -> None:
    right = accuracy(state[0], images, labels)
    folder = Path(os.environ.get("RESULT_DIR", "results"))
    folder.mkdir(parents=True, exist_ok=True)
    digest = {"accuracy": right, "sum": float(state[0].sum()).hex(), "learners": gang.size}
    (folder / f"score-{gang.rank}.json").write_text(json.dumps(digest))
    layers = dict(zip(("w1", "b1", "w2", "b2"), split(state[0]), strict=True))
    if gang.rank == 0:
        np.savez(folder / "network.npz", **layers)
    print(f"rank {gang.rank}: done, accuracy {right:.4f}", flush=True)
    training.finish()


if __name__ == "__main__":
    try:
        main()
    except PeerLost as error:
        raise SystemExit(f"rank {training.rank()}: {error}") from None
