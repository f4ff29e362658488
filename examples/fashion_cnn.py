"""A small CNN on Fashion-MNIST over 200 clients, with Adaptive-OSMD and uniform sampling (extra torch).

    pip install '.[torch]'    # at the top of the clone; `make setup` has done it in .venv
    python examples/fashion_cnn.py [--data DIR] [--rounds 200]

The images are looked for in DIR, then where Debian's dataset-fashion-mnist puts them, and else downloaded.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sortition import AdaptiveOSMDSampler, UniformSampler
from sortition.lab.algorithms import FedAvg
from sortition.lab.problems.idx import load_images
from sortition.lab.problems.softmax import client_sizes
from sortition.lab.problems.torch_federation import TorchFederation

COHORT_SIZE = 10
TEST_IMAGES = 2000


def small_cnn() -> nn.Module:
    """Two convolutions and a linear layer: 5,226 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )


def federation(
    data: Path | None, clients: int, seed: int
) -> tuple[TorchFederation, torch.Tensor, torch.Tensor]:
    """The clients' images, dealt at random with the paper's skewed sizes, and images to test on."""
    images, labels, source = load_images("fashion-mnist", data)
    print(f"images: {source}")
    rng = np.random.default_rng(seed)
    dealt = rng.permutation(len(images))
    pixels = torch.as_tensor(images[dealt] / np.float32(255.0)).unsqueeze(1)
    targets = torch.as_tensor(labels[dealt].astype(np.int64))
    sizes = rng.permutation(client_sizes(clients))
    ends = np.cumsum(sizes)
    datasets = [
        (pixels[end - size : end], targets[end - size : end]) for size, end in zip(sizes, ends, strict=True)
    ]
    held_out = slice(int(ends[-1]), int(ends[-1]) + TEST_IMAGES)
    torch.manual_seed(seed)
    return TorchFederation(small_cnn(), datasets, seed=seed), pixels[held_out], targets[held_out]


def main() -> None:
    """Train with both samplers and print how far each has come."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--clients", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    problem, inputs, targets = federation(arguments.data, arguments.clients, seed=0)
    algorithm = FedAvg(local_step_size=0.05, local_steps=5)
    common = {
        "num_clients": problem.num_clients,
        "cohort_size": COHORT_SIZE,
        "client_weights": problem.client_weights,
    }
    for sampler in (
        UniformSampler(**common),
        AdaptiveOSMDSampler(**common, num_rounds=arguments.rounds, rate_scale=100.0),
    ):
        model = problem.initial_model()
        for round_index in range(arguments.rounds):
            cohort = sampler.draw()
            model, norms = algorithm(model, cohort, problem, round_index)
            sampler.observe(cohort, norms)
        accuracy = problem.accuracy(model, inputs, targets)
        print(f"{type(sampler).__name__}: loss {problem.loss(model):.3f}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
