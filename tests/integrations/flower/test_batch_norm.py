"""A model with batch normalisation, in torch: it can be evaluated after every round."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAdam, FedAvg

from sortition import UniformSampler
from sortition.integrations.flower import AdaptiveSampling
from tests.integrations.flower.fake_grid import Client, federation, one_round

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

SIZES = [2.0, 2.0, 2.0, 60.0]


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))


def loaded(arrays):
    model = network()
    model.load_state_dict({key: torch.from_numpy(np.array(array)) for key, array in arrays.items()})
    return model


def client(m):
    """Its inputs have a scale of their own; those of the large client hardly vary."""
    generator = torch.Generator().manual_seed(m)
    x = torch.randn(16, 3, generator=generator) * (0.05 if SIZES[m] > 2 else 1.0)
    y = x.sum(dim=1, keepdim=True)

    def train(arrays, _):
        model = loaded(arrays)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(10):
            optimiser.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimiser.step()
        return {key: value.numpy() for key, value in model.state_dict().items()}

    return Client(train=train, examples=SIZES[m])


@pytest.mark.parametrize("inner", [FedAvg, FedAdam])
def test_running_variances_stay_positive_and_the_model_can_be_evaluated(inner):
    """The large client counts 3.6 times as much as all together, when drawn: 1 + 3.6 (0.35 - 1) < 0."""
    sizes = {f"name:client-{m}": size for m, size in enumerate(SIZES)}
    sampler = UniformSampler(num_clients=4, cohort_size=1, design="fixed_size", seed=3)
    strategy = AdaptiveSampling(inner(fraction_evaluate=0.0), sampler=sampler, num_examples=sizes)
    grid = federation([client(m) for m in range(4)])
    record = ArrayRecord(network().state_dict())
    batches, largest = 0, 0.0
    for server_round in range(1, 7):
        record, metrics = one_round(strategy, grid, record, server_round)
        largest = max(largest, metrics["sampling-total-weight"])
        arrays = {key: array.numpy() for key, array in record.items()}
        assert (arrays["1.running_var"] > 0.0).all()
        batches += 10
        assert arrays["1.num_batches_tracked"] == batches  # all clients do 10 steps
        with torch.no_grad():
            assert torch.isfinite(loaded(arrays).eval()(torch.randn(5, 3))).all()
    assert largest > 3.0  # the large client was drawn
