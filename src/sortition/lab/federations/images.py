"""Fashion-MNIST, dealt to clients: the one federation here that did not come with its clients."""

from __future__ import annotations

import numpy as np

from sortition.core.errors import DataError
from sortition.lab.federations.data import SPLIT_SEED, Examples
from sortition.lab.problems.idx import images_digest, load_images

NUM_CLIENTS = 500
NUM_IMAGES = 30_000
CONCENTRATION = 0.3
"""Of the Dirichlet distribution of a client's labels."""
SIZE_SPREAD = 1.2
"""Deviation of the logarithm of client sizes."""
DIGEST = "d0aa9129c294bdec27e4"


def fashion() -> Examples:
    """Images by client: sizes are log-normal, labels of a client follow its own Dirichlet draw.

    A client whose labels are all dealt out takes images of the labels that are left.
    """
    images, labels, place = load_images("fashion-mnist")
    if images_digest(images, labels) != DIGEST:
        raise DataError(f"{place} should hold the 60,000 training images of Fashion-MNIST; they differ")
    generator = np.random.default_rng(SPLIT_SEED)
    raw = np.exp(SIZE_SPREAD * generator.standard_normal(NUM_CLIENTS))
    sizes = np.maximum(1, np.round(raw / raw.sum() * NUM_IMAGES)).astype(np.int64)
    num_classes = 10
    pools = [generator.permutation(np.flatnonzero(labels == label)).tolist() for label in range(num_classes)]
    rows: list[int] = []
    for size in sizes.tolist():
        shares = generator.dirichlet(np.full(num_classes, CONCENTRATION))
        wanted = generator.multinomial(size, shares)
        for label in np.repeat(np.arange(num_classes), wanted).tolist():
            pool = pools[label] or max(pools, key=len)
            rows.append(pool.pop())
    pixels = images[rows].reshape(len(rows), -1).astype(np.float32) / 255.0
    clients = np.repeat(np.arange(NUM_CLIENTS), sizes)
    return Examples(pixels, labels[rows].astype(np.int64), clients, num_classes)
