"""Learn to read handwritten digits: a small neural network on the 1,797 real images that come with scikit-learn.

Halted at any time and resumed, it continues at the same step and ends with the same numbers, bit for bit. For that a
checkpoint holds the network, its momentum, and the state of the random generator that chooses and blurs the images.
"""

import argparse
import json
import os
import pickle
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread, so that sums are made in the same order
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from learner_agent import training


def main() -> None:
    options = read_options()
    images, test_images, labels, test_labels = load_data(options.seed)
    network, rng, step = restore() or fresh(options.seed)
    while step < options.steps:
        began = time.monotonic()
        batch = rng.integers(len(images), size=options.batch)
        network.partial_fit(noisy(images[batch], rng), labels[batch], classes=np.arange(10))
        step += 1
        report(step, options.steps, network, test_images, test_labels)
        halted = training.halt_requested()
        if halted or training.checkpoint_due(options.checkpoint_s):
            save(network, rng, step)
        if halted:
            print(f"halted after step {step}", flush=True)
            return
        time.sleep(max(0.0, options.step_s - (time.monotonic() - began)))
    save(network, rng, step)
    store_result(network, test_images, test_labels)
    training.finish()


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--checkpoint-s", type=float, help="seconds between checkpoints; default: as the job says"
    )
    parser.add_argument(
        "--step-s",
        type=float,
        default=0.0,
        help="minimum seconds per step: without it training takes only seconds, too short to watch",
    )
    return parser.parse_args()


def load_data(seed: int) -> list[np.ndarray]:
    """Return training images, test images, training labels, test labels; an image is 64 values from 0 to 1."""
    digits = load_digits()
    return train_test_split(digits.data / 16.0, digits.target, test_size=0.25, random_state=seed)


def fresh(seed: int) -> tuple[MLPClassifier, np.random.Generator, int]:
    """Return an untrained network, the random generator and step 0."""
    network = MLPClassifier((64,), solver="sgd", learning_rate_init=0.05, momentum=0.9, random_state=seed)
    return network, np.random.default_rng(seed), 0


def restore() -> tuple[MLPClassifier, np.random.Generator, int] | None:
    """Return network, random generator and step from the checkpoint; None on a first start."""
    folder = training.resume_from()
    if folder is None:
        return None
    with open(folder / "state.pickle", "rb") as source:  # our own file: its SHA-256 is in the manifest
        state = pickle.load(source)
    rng = np.random.default_rng()
    rng.bit_generator.state = state["rng"]
    print(f"resumed at step {state['step']}", flush=True)
    return state["network"], rng, state["step"]


def save(network: MLPClassifier, rng: np.random.Generator, step: int) -> None:
    state = {"network": network, "rng": rng.bit_generator.state, "step": step}
    with training.checkpoint(step) as folder:
        (folder / "state.pickle").write_bytes(pickle.dumps(state))


def noisy(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Blur each image with its own noise, so that the network never sees the same image twice."""
    return images + 0.3 * rng.standard_normal(images.shape)


def report(step: int, steps: int, network: MLPClassifier, images: np.ndarray, labels: np.ndarray) -> None:
    """Report the loss at every step, and at every tenth print a line and report the accuracy on unseen images."""
    loss = float(network.loss_)
    if step % 10 and step != steps:
        training.report(step, total=steps, loss=loss)
        return
    accuracy = float(network.score(images, labels))
    training.report(step, total=steps, loss=loss, accuracy=accuracy)
    print(f"step {step:4d} of {steps}  loss {loss:.4f}  accuracy {accuracy:.4f}", flush=True)


def store_result(network: MLPClassifier, images: np.ndarray, labels: np.ndarray) -> None:
    """Write the network and its exact score to RESULT_DIR, or to ./results."""
    folder = Path(os.environ.get("RESULT_DIR", "results"))
    folder.mkdir(parents=True, exist_ok=True)
    weights = {f"layer-{index}": layer for index, layer in enumerate(network.coefs_ + network.intercepts_)}
    np.savez(folder / "network.npz", **weights)
    score = {"loss": float(network.loss_).hex(), "accuracy": float(network.score(images, labels))}
    (folder / "score.json").write_text(json.dumps(score))
    print(f"done: accuracy {score['accuracy']:.4f}, exact loss {score['loss']}", flush=True)


if __name__ == "__main__":
    main()
