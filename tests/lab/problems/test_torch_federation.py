"""Torch modules: gradients against autograd, FedSGD and FedAvg, and modules that can't be batched."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

from torch import nn  # noqa: E402

from sortition import AdaptiveOSMDSampler, ConfigurationError  # noqa: E402
from sortition.lab.algorithms import FedAvg, FedSGD  # noqa: E402
from sortition.lab.problems.torch_federation import TorchFederation  # noqa: E402

SIZES = (1, 4, 9, 30)


def datasets(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    result = []
    for size in SIZES:
        labels = torch.randint(0, 3, (size,), generator=generator)
        inputs = 0.3 * torch.randn((size, 1, 6, 6), generator=generator)
        inputs[torch.arange(size), 0, labels, labels] += 3.0
        result.append((inputs, labels))
    return result


def cnn() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


class Branching(nn.Module):
    """A module whose path depends on its data, which vmap can't follow."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer = nn.Linear(36, 3)

    def forward(self, inputs):
        flat = inputs.reshape(len(inputs), -1)
        return self.layer(flat if flat.sum() > 0 else -flat)


@pytest.mark.parametrize("make", [cnn, Branching])
def test_updates_are_those_of_autograd(make):
    federation = TorchFederation(make(), datasets(), batch_size=50, seed=3)
    model = federation.initial_model()
    updates = federation.updates(model, np.array([0, 2]), round_index=4)
    assert federation._batched is (make is cnn)
    module, (inputs, labels) = make(), datasets()[0]
    nn.functional.cross_entropy(
        module(inputs), labels
    ).backward()  # client 0 has one sample: all batches are it
    expected = torch.cat([value.grad.reshape(-1) for value in module.parameters()]).numpy()
    assert updates[0] == pytest.approx(expected, abs=1e-5)


def test_one_by_one_is_the_same_as_batched():
    model = TorchFederation(cnn(), datasets()).initial_model()
    one, other = (
        TorchFederation(cnn(), datasets(), batched=batched).updates(model, np.arange(4), 2)
        for batched in (True, False)
    )
    assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize("algorithm", [FedSGD(0.1), FedAvg(0.1, local_steps=3)])
def test_training_brings_the_loss_down(algorithm):
    federation = TorchFederation(cnn(), datasets())
    sampler = AdaptiveOSMDSampler(
        num_clients=4, cohort_size=2, num_rounds=60, client_weights=federation.client_weights
    )
    model = federation.initial_model()
    start = federation.loss(model)
    for round_index in range(60):
        cohort = sampler.draw()
        model, norms = algorithm(model, cohort, federation, round_index)
        sampler.observe(cohort, norms)
    assert federation.loss(model) < 0.6 * start
    inputs, labels = datasets()[3]
    assert federation.accuracy(model, inputs, labels) > 0.8


def test_the_model_goes_back_into_a_module():
    federation, module = TorchFederation(cnn(), datasets()), cnn()
    model = federation.initial_model() + 0.1
    federation.load_into(module, model)
    flat = torch.cat([value.detach().reshape(-1) for value in module.parameters()]).numpy()
    assert flat == pytest.approx(model, abs=1e-6)


def test_rejects_empty_datasets():
    with pytest.raises(ConfigurationError, match="datasets"):
        TorchFederation(cnn(), [])
    inputs, labels = datasets()[0]
    with pytest.raises(ConfigurationError, match=r"datasets .* client 1"):
        TorchFederation(cnn(), [(inputs, labels), (inputs[:0], labels[:0])])
