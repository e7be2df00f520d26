"""Learn to read the 70,000 handwritten digits of MNIST with a convolutional network in Keras 3, on the JAX backend.

Shows how to use the platform where the framework has the training loop: a callback reports, saves and halts. Halted and
resumed on a CPU, it ends with the same numbers, bit for bit.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import keras
import numpy as np

from learner_agent import training


def main() -> None:
    options = read_options()
    keras.utils.set_random_seed(options.seed)
    images, labels = load("train", options.data, options.images)
    model, step = restore() or (build(), 0)
    steps = options.epochs * (len(images) // options.batch)
    callback = PlatformCallback(steps, step, options.checkpoint_s)
    if step < steps:
        batches = Batches(images, labels, options.batch, steps=steps, first=step, seed=options.seed)
        model.fit(batches, epochs=1, shuffle=False, verbose=0, callbacks=[callback])
    if not callback.halted:
        finish(model, *load("t10k", options.data, None), step=callback.step, steps=steps)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--images", type=int, default=None, help="train on the first N images only")
    parser.add_argument(
        "--checkpoint-s", type=float, help="seconds between checkpoints; default: as the job says"
    )
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("DATA_DIR", ".")) / "mnist")
    return parser.parse_args()


def load(part: str, folder: Path, count: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, 28, 28, 1) from 0 to 1 and labels (n,) of ``train`` or ``t10k``."""
    images = np.fromfile(folder / f"{part}-images-idx3-ubyte", np.uint8, offset=16).reshape(-1, 28, 28, 1)
    labels = np.fromfile(folder / f"{part}-labels-idx1-ubyte", np.uint8, offset=8)
    return images[:count].astype(np.float32) / 255, labels[:count].astype(np.int32)


@keras.saving.register_keras_serializable()
class Reader(keras.Sequential):
    """Logs the loss of each batch. Keras logs the mean since `fit` began, which would restart after a resume."""

    def train_step(self, state, data):
        *weights, metrics = state
        return super().train_step((*weights, [keras.ops.zeros_like(metric) for metric in metrics]), data)


def build() -> keras.Model:
    model = Reader(
        [
            keras.layers.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss)
    return model


class Batches(keras.utils.PyDataset):
    """The remaining batches; each epoch has its own order, given by the seed."""

    def __init__(self, images, labels, batch, *, steps, first, seed):
        super().__init__()
        self.images, self.labels, self.batch = images, labels, batch
        self.steps, self.first, self.seed = steps, first, seed

    def __len__(self) -> int:
        return self.steps - self.first

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        epoch, place = divmod(self.first + index, len(self.images) // self.batch)
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.images))
        chosen = order[place * self.batch : (place + 1) * self.batch]
        return self.images[chosen], self.labels[chosen]


class PlatformCallback(keras.callbacks.Callback):
    """Reports every step, saves every few seconds, and stops training when a halt is requested."""

    def __init__(self, steps: int, step: int, checkpoint_s: float | None) -> None:
        super().__init__()
        self.steps, self.step, self.checkpoint_s = steps, step, checkpoint_s
        self.halted = False

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.step += 1
        loss = float(logs["loss"])
        training.report(self.step, total=self.steps, loss=loss)
        if self.step % 100 == 0:
            print(f"step {self.step} of {self.steps}  loss {loss:.4f}", flush=True)
        self.halted = training.halt_requested()
        due = training.checkpoint_due(self.checkpoint_s)
        if self.halted or due or self.step == self.steps:
            save(self.model, self.step)
        if self.halted:
            self.model.stop_training = True
            print(f"halted after step {self.step}", flush=True)


def restore() -> tuple[keras.Model, int] | None:
    folder = training.resume_from()
    if folder is None:
        return None
    step = int((folder / "step").read_text())
    print(f"resumed at step {step}", flush=True)
    return keras.saving.load_model(folder / "model.keras"), step


def save(model: keras.Model, step: int) -> None:
    with training.checkpoint(step) as folder:
        model.save(folder / "model.keras")  # with the optimizer's state
        (folder / "step").write_text(str(step))


def finish(model: keras.Model, images: np.ndarray, labels: np.ndarray, *, step: int, steps: int) -> None:
    accuracy = float((model.predict(images, batch_size=1000, verbose=0).argmax(1) == labels).mean())
    training.report(step, total=steps, accuracy=accuracy)
    folder = Path(os.environ.get("RESULT_DIR", "results"))
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / "model.keras")
    exact = float(sum(np.asarray(layer, np.float64).sum() for layer in model.get_weights())).hex()
    (folder / "score.txt").write_text(f"{exact} {accuracy}\n")
    print(f"done: accuracy {accuracy:.4f}, exact sum of the weights {exact}", flush=True)
    training.finish()


if __name__ == "__main__":
    main()
