"""Learn to read the 70,000 handwritten digits of MNIST with a small convolutional network in PyTorch.

Runs on one CPU thread or one GPU. Halted and resumed on a CPU, it ends with the same numbers, bit for bit: a checkpoint
holds the network, the optimizer, and the state of the random generator for dropout; the images of a batch follow from
the step.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from learner_agent import training

os.environ.setdefault(
    "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
)  # so that sums are made in the same order on a GPU, too


def main() -> None:
    options = read_options()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(options.seed)
    device = torch.device(
        "cuda" if torch.cuda.is_available() and os.environ.get("GPU_COUNT") != "0" else "cpu"
    )
    images, labels = load("train", options.data, options.images, device)
    network = build().to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=options.rate)
    step = restore(network, optimizer, device)
    steps = options.epochs * (len(images) // options.batch)
    while step < steps:
        batch = choose(len(images), options.batch, step, options.seed).to(device)
        loss = functional.cross_entropy(network(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        training.report(step, total=steps, loss=loss.item())
        halted = training.halt_requested()
        if halted or training.checkpoint_due(options.checkpoint_s):
            save(network, optimizer, step)
        if halted:
            print(f"halted after step {step}", flush=True)
            return
        if step % 100 == 0:
            print(f"step {step} of {steps}  loss {loss.item():.4f}", flush=True)
    save(network, optimizer, step)
    finish(network, load("t10k", options.data, None, device), step, steps)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--images", type=int, default=None, help="train on the first N images only")
    parser.add_argument(
        "--checkpoint-s", type=float, help="seconds between checkpoints; default: as the job says"
    )
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("DATA_DIR", ".")) / "mnist")
    return parser.parse_args()


def load(
    part: str, folder: Path, count: int | None, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (n, 1, 28, 28) from 0 to 1 and labels (n,) of ``train`` or ``t10k``."""
    images = np.fromfile(folder / f"{part}-images-idx3-ubyte", np.uint8, offset=16).reshape(-1, 1, 28, 28)
    labels = np.fromfile(folder / f"{part}-labels-idx1-ubyte", np.uint8, offset=8)
    pixels = torch.tensor(images[:count], dtype=torch.float32, device=device) / 255
    return pixels, torch.tensor(labels[:count], dtype=torch.long, device=device)


def build() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 5 * 5, 10),
    )


def choose(count: int, batch: int, step: int, seed: int) -> torch.Tensor:
    """Return the indices of a step's images: each epoch has its own order, given by the seed."""
    epoch, place = divmod(step, count // batch)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1000 + epoch))
    return order[place * batch : (place + 1) * batch]


def restore(network: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Restore network, optimizer and random state from the checkpoint; return the step to continue from."""
    folder = training.resume_from()
    if folder is None:
        return 0
    state = torch.load(folder / "state.pt", map_location=device, weights_only=True)
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"].cpu())
    if device.type == "cuda" and state["cuda_rng"] is not None:
        torch.cuda.set_rng_state(state["cuda_rng"].cpu())
    print(f"resumed at step {state['step']}", flush=True)
    return int(state["step"])


def save(network: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    state = {
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "step": step,
    }
    with training.checkpoint(step) as folder:
        torch.save(state, folder / "state.pt")


def finish(network: nn.Module, test: tuple[torch.Tensor, torch.Tensor], step: int, steps: int) -> None:
    network.eval()
    with torch.no_grad():
        scores = torch.cat([network(part) for part in test[0].split(1000)])
    loss = functional.cross_entropy(scores, test[1]).item()
    accuracy = (scores.argmax(1) == test[1]).float().mean().item()
    training.report(step, total=steps, test_loss=loss, accuracy=accuracy)
    folder = Path(os.environ.get("RESULT_DIR", "results"))
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), folder / "network.pt")
    (folder / "score.txt").write_text(f"{loss.hex()} {accuracy}\n")
    print(f"done: accuracy {accuracy:.4f}, exact test loss {loss.hex()}", flush=True)
    training.finish()


if __name__ == "__main__":
    main()
