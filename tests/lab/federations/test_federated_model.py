"""Models with a client axis against plain torch, and what a federation's model promises."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

from torch.nn import functional  # noqa: E402

from sortition.core.cohort import Cohort  # noqa: E402
from sortition.lab.algorithms import AdamState, FedAdam, FedAvg  # noqa: E402
from sortition.lab.federations.batched_models import (  # noqa: E402
    NextCharacter,
    SmallCNN,
    SoftmaxRegression,
    TwoLayers,
    gradients,
    initial_row,
    losses,
    named,
)
from sortition.lab.federations.data import FEDERATIONS, Examples, dealt  # noqa: E402
from sortition.lab.federations.federated_model import FederatedModel  # noqa: E402
from sortition.lab.training import check_problem  # noqa: E402


def toy(kind: str = "table", clients: int = 6, seed: int = 0):
    """A small federation with sizes from 1 to 36."""
    generator = np.random.default_rng(seed)
    owners = np.repeat(np.arange(clients), (np.arange(clients) + 1) ** 2)
    targets = generator.integers(3, size=len(owners))
    inputs = generator.standard_normal((len(owners), 4)).astype(np.float32)
    name = {"table": "chem97", "text": "shakespeare", "image": "fashion"}[kind]
    if kind == "text":
        inputs = generator.integers(3, size=(len(owners), 5)).astype(np.uint8)
        targets = generator.integers(3, size=(len(owners), 5)).astype(np.uint8)
    if kind == "image":
        inputs = generator.random((len(owners), 784)).astype(np.float32)
    return dealt("toy", FEDERATIONS[name], Examples(inputs, targets, owners, 3))


def rows_of(model, clients: int = 3) -> torch.Tensor:
    return torch.stack(
        [torch.tensor(initial_row(model, seed) + 0.05, dtype=torch.float64) for seed in range(clients)]
    )


def test_the_recurrent_unit_is_that_of_torch():
    model, hidden = NextCharacter(4, hidden=5), 5
    rows = rows_of(model)
    inputs = torch.randint(4, (3, 2, 6), generator=torch.Generator().manual_seed(0))
    logits = model.logits(named(model, rows), inputs)
    for client in range(3):
        own = {name: value[0] for name, value in named(model, rows[client : client + 1]).items()}
        theirs = torch.nn.GRU(4, hidden, batch_first=True).double()
        order = torch.cat(
            [torch.arange(hidden, 2 * hidden), torch.arange(hidden), torch.arange(2 * hidden, 3 * hidden)]
        )
        with torch.no_grad():
            theirs.weight_ih_l0.copy_(own["input"][:, order].T)
            theirs.bias_ih_l0.copy_(own["input_bias"][order])
            theirs.weight_hh_l0.copy_(own["recurrent"][:, order].T)
            theirs.bias_hh_l0.zero_()
            states, _ = theirs(functional.one_hot(inputs[client], 4).double())
            assert torch.allclose(logits[client], states @ own["last"] + own["last_bias"])


def test_the_convolutions_are_those_of_torch():
    model = SmallCNN(10)
    rows, inputs = rows_of(model), torch.rand(3, 2, 784, dtype=torch.float64)
    logits = model.logits(named(model, rows), inputs)
    for client in range(3):
        own = {name: value[0] for name, value in named(model, rows[client : client + 1]).items()}
        images = inputs[client].reshape(2, 1, 28, 28)
        first = own["first"].T.reshape(8, 1, 4, 4)
        maps = functional.relu(functional.conv2d(images, first, own["first_bias"], stride=4))
        second = own["second"].T.reshape(16, 8, 3, 3)
        maps = functional.relu(functional.conv2d(maps, second, own["second_bias"], stride=2))
        flat = maps.permute(0, 2, 3, 1).reshape(2, -1)
        assert torch.allclose(logits[client], flat @ own["last"] + own["last_bias"])


@pytest.mark.parametrize("model", [SoftmaxRegression(4, 3), TwoLayers(4, 3), SmallCNN(3), NextCharacter(3)])
def test_each_gradient_is_that_of_its_own_client(model):
    """Derivatives of the client's own mean loss, by differences."""
    rows = rows_of(model)
    shape = {SmallCNN: (3, 2, 784), NextCharacter: (3, 2, 5)}.get(type(model), (3, 2, 4))
    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand(shape, dtype=torch.float64, generator=generator)
    targets = torch.randint(3, shape[:2], generator=generator)
    if isinstance(model, NextCharacter):
        inputs = targets = torch.randint(3, shape, generator=generator)
    found = gradients(model, rows, inputs, targets)
    direction = torch.rand(rows.shape, dtype=torch.float64, generator=generator) - 0.5
    ahead, behind = (
        losses(model, rows + step * direction, inputs, targets).mean(dim=1) for step in (1e-6, -1e-6)
    )
    assert torch.allclose((found * direction).sum(dim=1), (ahead - behind) / 2e-6, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("model", ["softmax", "two-layer"])
def test_compiled_gradients_of_tables_are_those_of_torch(model):
    problem = FederatedModel(toy(), model=model, batch_size=7, seed=3)
    clients = np.array([0, 2, 5])
    models = problem.initial_model() + 0.1 * np.random.default_rng(0).standard_normal(
        (3, problem.initial_model().size)
    )
    found = problem.local_gradients(models, clients, round_index=4, step=2)
    rows = problem._batch_rows(clients, problem._local.of_round(4 * (1 << 20) + 2))
    inputs, targets = (
        part.double() if part.is_floating_point() else part for part in problem._examples(rows)
    )
    assert np.allclose(found, gradients(problem.model, torch.tensor(models), inputs, targets), atol=1e-12)


@pytest.mark.parametrize("kind", ["table", "text", "image"])
def test_a_federation_is_a_problem(kind):
    """Updates depend on model, round and client only, whoever else is drawn."""
    problem = FederatedModel(toy(kind), batch_size=3, seed=1)
    check_problem(problem)
    model = problem.initial_model()
    together = problem.updates(model, np.array([1, 4, 5]), 2)
    assert np.allclose(problem.updates(model, np.array([4]), 2)[0], together[1], atol=1e-6)
    assert not np.allclose(problem.updates(model, np.array([4]), 3)[0], together[1], atol=1e-6)
    other = FederatedModel(toy(kind), batch_size=3, seed=2)
    assert not np.array_equal(other.initial_model(), model)


@pytest.mark.parametrize("kind", ["table", "text", "image"])
def test_client_losses_are_of_all_training_data(kind):
    """Every training example of a client counts once, and in any order of the clients."""
    data = toy(kind)
    problem = FederatedModel(data, batch_size=3, seed=1)
    model, clients = problem.initial_model(), np.array([5, 0, 3])
    ends = np.cumsum(data.client_sizes)
    for power in (1.0, 2.0):
        expected = []
        for client in clients:
            own = slice(ends[client] - data.client_sizes[client], ends[client])
            row, inputs, targets = (
                torch.as_tensor(v)[None] for v in (model, data.inputs[own], data.targets[own])
            )
            each = losses(problem.model, row.float(), inputs, targets)[0].double().numpy()
            expected.append(np.mean(each**power) ** (1.0 / power))
        assert problem.client_losses(model, clients, power) == pytest.approx(expected, rel=1e-5)


def test_the_loss_is_the_weighted_mean_of_held_out_losses():
    data = toy()
    for weighting, weights in (("sizes", data.size_weights), ("equal", np.full(6, 1 / 6))):
        problem = FederatedModel(data, weighting=weighting, seed=0)
        model = problem.initial_model()
        weight, bias = model[:12].reshape(4, 3), model[12:]
        logits = data.held_inputs.astype(float) @ weight + bias
        chosen = logits[np.arange(len(logits)), data.held_targets]
        each = np.log(np.exp(logits).sum(axis=1)) - chosen
        means = [each[data.held_clients == client].mean() for client in range(2, 6)]
        assert np.isnan(problem.held_out_losses(model)[:2]).all()  # 1 and 4 examples: nothing is held out
        expected = weights[2:] @ means / weights[2:].sum()
        assert problem.loss(model) == pytest.approx(expected, rel=1e-5)


def test_one_round_of_fedadam_by_hand():
    problem = FederatedModel(toy(), seed=0)
    algorithm = FedAdam(0.1, 2, 0.5)
    start = algorithm.start(problem)
    cohort = Cohort(0, 2, clients=[1, 5], counts=[1, 1], probabilities=[0.5, 0.5], weights=[2.0, 1.5])
    state, norms = algorithm(start, cohort, problem, 0)
    updates = FedAvg(0.1, 2).updates(start.model, cohort.clients, problem, 0)
    step = (problem.client_weights[[1, 5]] * cohort.weights) @ updates
    assert np.allclose(state.first, 0.1 * step)
    assert np.allclose(state.second, 0.01 * step**2)
    assert np.allclose(state.model, start.model - 0.5 * 0.1 * step / (0.1 * np.abs(step) + 1e-3))
    assert np.allclose(norms, np.linalg.norm(updates, axis=1) / (0.1 * np.sqrt(2)))
    assert np.allclose(algorithm.all_norms(start, problem, 0)[[1, 5]], norms)
    assert isinstance(state, AdamState)
