"""Learn to read the 70,000 handwritten digits of MNIST with a small network in JAX.

Halted and resumed on a CPU, it ends with the same numbers, bit for bit: a checkpoint holds the weights and their
momentum, and all randomness follows from the seed and the step.
"""

import argparse
import os
from functools import partial
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import numpy as np

from learner_agent import training

SIZES = (784, 128, 10)


def main() -> None:
    options = read_options()
    images, labels = load("train", options.data, options.images)
    weights, velocity, step = restore() or fresh(options.seed)
    steps = options.epochs * (len(images) // options.batch)
    while step < steps:
        batch = choose(len(images), options.batch, step, options.seed)
        key = jax.random.fold_in(jax.random.key(options.seed), step)
        weights, velocity, loss = learn(weights, velocity, images[batch], labels[batch], key, options.rate)
        step += 1
        training.report(step, total=steps, loss=float(loss))
        halted = training.halt_requested()
        if halted or training.checkpoint_due(options.checkpoint_s):
            save(weights, velocity, step)
        if halted:
            print(f"halted after step {step}", flush=True)
            return
        if step % 100 == 0:
            print(f"step {step} of {steps}  loss {float(loss):.4f}", flush=True)
    save(weights, velocity, step)
    finish(weights, *load("t10k", options.data, None), step=step, steps=steps)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--images", type=int, default=None, help="train on the first N images only")
    parser.add_argument(
        "--checkpoint-s", type=float, help="seconds between checkpoints; default: as the job says"
    )
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("DATA_DIR", ".")) / "mnist")
    return parser.parse_args()


def load(part: str, folder: Path, count: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, 784) from 0 to 1 and labels (n,) of ``train`` or ``t10k``."""
    images = np.fromfile(folder / f"{part}-images-idx3-ubyte", np.uint8, offset=16).reshape(-1, 784)
    labels = np.fromfile(folder / f"{part}-labels-idx1-ubyte", np.uint8, offset=8)
    return images[:count].astype(np.float32) / 255, labels[:count].astype(np.int32)


def fresh(seed: int) -> tuple[list[jax.Array], list[jax.Array], int]:
    """Return random weights, zero momentum and step 0."""
    keys = jax.random.split(jax.random.key(seed), len(SIZES))
    weights = []
    for key, wide, narrow in zip(keys, SIZES, SIZES[1:], strict=False):
        weights += [jax.random.normal(key, (wide, narrow)) * (2 / wide) ** 0.5, jnp.zeros(narrow)]
    return weights, [jnp.zeros_like(layer) for layer in weights], 0


def scores(weights: list[jax.Array], images: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(images @ weights[0] + weights[1])
    return hidden @ weights[2] + weights[3]


@partial(jax.jit, static_argnames="rate")
def learn(weights, velocity, images, labels, key, rate):
    """Return weights and momentum after one step on images blurred with noise, and the loss before it."""

    def loss_of(weights):
        blurred = images + 0.1 * jax.random.normal(key, images.shape)
        log_probabilities = jax.nn.log_softmax(scores(weights, blurred))
        return -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1).mean()

    loss, slopes = jax.value_and_grad(loss_of)(weights)
    velocity = [0.9 * speed - rate * slope for speed, slope in zip(velocity, slopes, strict=True)]
    return [layer + speed for layer, speed in zip(weights, velocity, strict=True)], velocity, loss


def choose(count: int, batch: int, step: int, seed: int) -> np.ndarray:
    """Return the indices of a step's images: each epoch has its own order, given by the seed."""
    epoch, place = divmod(step, count // batch)
    return np.random.default_rng([seed, epoch]).permutation(count)[place * batch : (place + 1) * batch]


def restore() -> tuple[list[jax.Array], list[jax.Array], int] | None:
    folder = training.resume_from()
    if folder is None:
        return None
    with np.load(folder / "state.npz") as saved:
        weights = [jnp.asarray(saved[f"weight-{index}"]) for index in range(4)]
        velocity = [jnp.asarray(saved[f"velocity-{index}"]) for index in range(4)]
        step = int(saved["step"])
    print(f"resumed at step {step}", flush=True)
    return weights, velocity, step


def save(weights: list[jax.Array], velocity: list[jax.Array], step: int) -> None:
    layers = {f"weight-{index}": np.asarray(layer) for index, layer in enumerate(weights)}
    speeds = {f"velocity-{index}": np.asarray(speed) for index, speed in enumerate(velocity)}
    with training.checkpoint(step) as folder:
        np.savez(folder / "state.npz", step=step, **layers, **speeds)


def finish(
    weights: list[jax.Array], images: np.ndarray, labels: np.ndarray, *, step: int, steps: int
) -> None:
    accuracy = float((scores(weights, images).argmax(1) == labels).mean())
    training.report(step, total=steps, accuracy=accuracy)
    folder = Path(os.environ.get("RESULT_DIR", "results"))
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "network.npz", *[np.asarray(layer) for layer in weights])
    exact = float(sum(np.asarray(layer, np.float64).sum() for layer in weights)).hex()
    (folder / "score.txt").write_text(f"{exact} {accuracy}\n")
    print(f"done: accuracy {accuracy:.4f}, exact sum of the weights {exact}", flush=True)
    training.finish()


if __name__ == "__main__":
    main()
