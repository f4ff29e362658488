r"""Any ``torch.nn.Module`` over clients with datasets of their own (extra ``torch``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import whole_number
from sortition.lab.problems.batches import BATCHES, LOCAL_STEPS, STEPS_A_ROUND, batch_rows, stream
from sortition.lab.problems.softmax import digits_dealt

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Predictions and targets to one loss a sample."""


def cross_entropy(predictions: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each sample."""
    return nn.functional.cross_entropy(predictions, targets, reduction="none")


class TorchFederation:
    r"""A federation whose model is ``module`` and whose client m holds ``datasets[m]`` = (inputs, targets).

    The model is passed around as one flat array, as in every problem of the library. An update is the mean
    gradient of a mini-batch of :math:`\min(B, n_m)` samples (FedSGD); ``local_gradients`` gives those of
    local steps at the clients' own models (FedAvg, SCAFFOLD). :math:`\lambda_m = n_m / n`.

    The whole cohort is computed in one batched call (``torch.func.vmap``) where the module allows it; where
    it does not (control flow that depends on the data, operations without a batching rule), client by
    client. The module is put into evaluation mode, so that dropout is off and a client's update is a function
    of model, round and client.

    >>> inputs, targets = torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])
    >>> federation = TorchFederation(nn.Linear(1, 2), [(inputs, targets), (inputs[:1], targets[:1])])
    >>> federation.updates(federation.initial_model(), np.array([0, 1]), round_index=0).shape
    (2, 4)
    """

    def __init__(
        self,
        module: nn.Module,
        datasets: Sequence[tuple[Tensor, Tensor]],
        *,
        loss: Loss = cross_entropy,
        batch_size: int = 5,
        batched: bool = True,
        seed: int = 0,
    ) -> None:
        if not datasets:
            raise ConfigurationError("datasets must hold one dataset for each client, got none")
        sizes = np.array([len(inputs) for inputs, _ in datasets])
        empty = np.flatnonzero(sizes == 0)
        if len(empty):
            raise ConfigurationError(f"datasets must not be empty, got an empty one for client {empty[0]}")
        self.num_clients = len(datasets)
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        self.client_sizes: IntArray = sizes.astype(np.int64)
        self.client_weights: FloatArray = sizes / sizes.sum()
        self._module = module.eval()
        self._loss = loss
        self._shapes = [(name, value.shape) for name, value in module.named_parameters()]
        self._dtype = next(module.parameters()).dtype
        self._start = self._flat({name: value.detach() for name, value in module.named_parameters()})
        self._inputs = torch.cat([inputs for inputs, _ in datasets])
        self._targets = torch.cat([targets for _, targets in datasets])
        self._first_rows = np.cumsum(self.client_sizes) - self.client_sizes
        self._batches, self._local = stream(seed, BATCHES), stream(seed, LOCAL_STEPS)
        self._one = grad(self._batch_loss)
        self._many = vmap(self._one)
        self._batched = batched

    def initial_model(self) -> FloatArray:
        """The parameters that the module came with."""
        return self._start.copy()

    def load_into(self, module: nn.Module, model: FloatArray) -> None:
        """Put a flat model back into a module of the same shape."""
        flat = torch.as_tensor(model, dtype=self._dtype)
        module.load_state_dict(self._unflatten(flat), strict=False)

    def updates(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        """Mini-batch gradients of ``clients``, one row each, in one call."""
        models = np.broadcast_to(model, (len(clients), model.size))
        return self._gradients(models, clients, self._batches.of_round(round_index))

    def local_gradients(
        self, models: FloatArray, clients: IntArray, round_index: int, step: int
    ) -> FloatArray:
        """Mini-batch gradients of local steps, each at its client's own model (a row of ``models``)."""
        return self._gradients(models, clients, self._local.of_round(round_index * STEPS_A_ROUND + step))

    def all_norms(self, model: FloatArray, round_index: int) -> FloatArray:
        """The norm of the update that each client would send in this round, drawn or not."""
        updates = self.updates(model, np.arange(self.num_clients), round_index)
        return np.asarray(np.linalg.norm(updates, axis=1))

    def loss(self, model: FloatArray) -> float:
        """The mean loss over all samples of all clients."""
        with torch.no_grad():
            losses = self._loss(self._predict(model, self._inputs), self._targets)
        return float(losses.mean())

    def accuracy(self, model: FloatArray, inputs: Tensor, targets: Tensor) -> float:
        """The share of ``inputs`` whose highest prediction is the target."""
        with torch.no_grad():
            hits = self._predict(model, inputs).argmax(dim=1) == targets
        return float(hits.double().mean())

    def _predict(self, model: FloatArray, inputs: Tensor) -> Tensor:
        parameters = self._unflatten(torch.as_tensor(model, dtype=self._dtype))
        predictions: Tensor = functional_call(self._module, parameters, (inputs,))
        return predictions

    def _batch_loss(self, flat: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Weighted mean loss of one mini-batch: what is differentiated."""
        predictions: Tensor = functional_call(self._module, self._unflatten(flat), (inputs,))
        return self._loss(predictions, targets) @ weights

    def _gradients(self, models: FloatArray, clients: IntArray, generator: np.random.Generator) -> FloatArray:
        uniforms = generator.random((self.num_clients, self.batch_size))[clients]
        sizes = self.client_sizes[clients]
        rows = torch.as_tensor(self._first_rows[clients, None] + batch_rows(uniforms, sizes, False))
        batch = np.minimum(self.batch_size, sizes)[:, None]
        weights = torch.as_tensor((np.arange(self.batch_size) < batch) / batch, dtype=self._dtype)
        flats = torch.as_tensor(np.array(models), dtype=self._dtype)
        arguments = (flats, self._inputs[rows], self._targets[rows], weights)
        if self._batched:
            try:
                return np.asarray(self._many(*arguments).numpy(), dtype=np.float64)
            except RuntimeError:  # what vmap raises for a module that it can't batch
                self._batched = False
        each = [self._one(*(argument[c] for argument in arguments)) for c in range(len(clients))]
        return np.asarray(torch.stack(each).numpy(), dtype=np.float64)

    def _unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        pieces = torch.split(flat, [shape.numel() for _, shape in self._shapes])
        return {name: piece.reshape(shape) for (name, shape), piece in zip(self._shapes, pieces, strict=True)}

    def _flat(self, parameters: dict[str, Tensor]) -> FloatArray:
        pieces = [parameters[name].reshape(-1) for name, _ in self._shapes]
        return np.asarray(torch.cat(pieces).numpy(), dtype=np.float64)


def digits_cnn(*, num_clients: int = 100, batch_size: int = 5, seed: int = 0) -> TorchFederation:
    """A convolutional network of 690 parameters on the digits, dealt as in ``digits_federation``."""
    pixels, digits, sizes = digits_dealt(num_clients, seed)
    images = torch.as_tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8)
    ends = np.cumsum(sizes)
    datasets = [
        (images[end - size : end], torch.as_tensor(digits[end - size : end]))
        for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)
    ]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)
        )
    return TorchFederation(module, datasets, batch_size=batch_size, seed=seed)
