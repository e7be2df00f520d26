"""A network with one hidden layer, its weights in one flat vector, so that gradients can be summed as vectors."""

from __future__ import annotations

import numpy as np

SHAPES = ((64, 48), (48,), (48, 10), (10,))
SIZES = [int(np.prod(shape)) for shape in SHAPES]


def fresh(seed: int) -> np.ndarray:
    """Return small random weights and biases of zero."""
    rng = np.random.default_rng(seed)
    w1, w2 = rng.normal(0, 64**-0.5, SHAPES[0]), rng.normal(0, 48**-0.5, SHAPES[2])
    return np.concatenate([w1.ravel(), np.zeros(48), w2.ravel(), np.zeros(10)])


def split(weights: np.ndarray) -> list[np.ndarray]:
    """Return the layers as views: weights and bias of the hidden layer, weights and bias of the output."""
    parts = np.split(weights, np.cumsum(SIZES)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True)]


def gradient(weights: np.ndarray, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the gradient of the cross entropy and its value, both summed over the images."""
    w1, b1, w2, b2 = split(weights)
    hidden = np.maximum(images @ w1 + b1, 0.0)
    scores = hidden @ w2 + b2
    scores -= scores.max(axis=1, keepdims=True)
    probabilities = np.exp(scores)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -float(np.log(probabilities[rows, labels] + 1e-300).sum())
    probabilities[rows, labels] -= 1.0
    back = (probabilities @ w2.T) * (hidden > 0.0)
    slopes = [images.T @ back, back.sum(axis=0), hidden.T @ probabilities, probabilities.sum(axis=0)]
    return np.concatenate([slope.ravel() for slope in slopes]), loss


def accuracy(weights: np.ndarray, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of images that are read correctly."""
    w1, b1, w2, b2 = split(weights)
    guesses = (np.maximum(images @ w1 + b1, 0.0) @ w2 + b2).argmax(axis=1)
    return float((guesses == labels).mean())
