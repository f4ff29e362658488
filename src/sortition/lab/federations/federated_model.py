"""A federation with a model: what the algorithms of the lab train."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import one_of, whole_number
from sortition.lab.federations.batched_models import (
    BatchedModel,
    NextCharacter,
    SmallCNN,
    SoftmaxRegression,
    TwoLayers,
    gradients,
    initial_row,
    losses,
)
from sortition.lab.federations.data import Federation
from sortition.lab.federations.table_gradients import softmax_gradients, two_layer_gradients
from sortition.lab.problems.batches import (
    BATCHES,
    LOCAL_STEPS,
    STEPS_A_ROUND,
    batch_rows,
    hashed_uniforms,
    stream,
)

Weighting: TypeAlias = Literal["sizes", "equal"]
MODELS = {"table": ("softmax", "two-layer"), "text": ("gru",), "image": ("cnn",)}
"""Models by kind of data; the first is the default."""
MOST_HELD = {"table": 100, "text": 5, "image": 20}
"""Held-out examples of a client that are judged, at most: its mean loss needs no more."""
LONGEST_GRADIENT = 1.0
"""Of a recurrent network: longer ones are scaled down to this norm."""
CHUNK = 1 << 13
"""Examples that are judged at once."""


class FederatedModel:
    r"""The model of a federation, with :math:`\lambda_m = n_m / N` ("sizes") or :math:`1 / M` ("equal").

    The initial model and the mini-batches depend on the seed, the data do not. ``loss`` is that of held-out
    data, :math:`\sum_m \lambda_m \ell_m`, over the clients that have any.
    """

    def __init__(
        self,
        federation: Federation,
        *,
        model: str | None = None,
        weighting: Weighting = "sizes",
        batch_size: int = 10,
        seed: int = 0,
    ) -> None:
        kinds = MODELS[federation.kind]
        self.federation = federation
        name = model or kinds[0]
        one_of("model", name, kinds)
        self.model: BatchedModel = _model(federation, name)
        self.num_clients = federation.num_clients
        self.client_sizes = federation.client_sizes
        one_of("weighting", weighting, ("sizes", "equal"))
        equal = np.full(self.num_clients, 1.0 / self.num_clients)
        self.client_weights: FloatArray = federation.size_weights if weighting == "sizes" else equal
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        self._start = initial_row(self.model, seed)
        self._inputs, self._targets = (
            torch.as_tensor(values) for values in (federation.inputs, federation.targets)
        )
        self._first_rows = np.cumsum(self.client_sizes) - self.client_sizes
        self._batches, self._local = stream(seed, BATCHES), stream(seed, LOCAL_STEPS)
        kept = _first_of_each(federation.held_clients, MOST_HELD[federation.kind])
        self._held = tuple(
            torch.as_tensor(values[kept]) for values in (federation.held_inputs, federation.held_targets)
        )
        self._held_clients = federation.held_clients[kept]
        self._held_counts = np.bincount(self._held_clients, minlength=self.num_clients)

    def initial_model(self) -> FloatArray:
        """Random parameters of this seed."""
        return self._start.copy()

    def updates(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        """Mini-batch gradients of ``clients``, one row each."""
        models = np.broadcast_to(model, (len(clients), model.size))
        return self._gradients(models, clients, self._batches.of_round(round_index))

    def local_gradients(
        self, models: FloatArray, clients: IntArray, round_index: int, step: int
    ) -> FloatArray:
        """Mini-batch gradients of local steps, each at its client's own model (a row of ``models``)."""
        return self._gradients(models, clients, self._local.of_round(round_index * STEPS_A_ROUND + step))

    def _gradients(self, models: FloatArray, clients: IntArray, generator: np.random.Generator) -> FloatArray:
        rows = self._batch_rows(clients, generator)
        models = np.ascontiguousarray(models)
        data, classes = self.federation, self.federation.num_classes
        if isinstance(self.model, SoftmaxRegression):
            return np.asarray(softmax_gradients(models, data.inputs, data.targets, rows, classes))
        if isinstance(self.model, TwoLayers):
            width = self.model.hidden
            return np.asarray(two_layer_gradients(models, data.inputs, data.targets, rows, width, classes))
        found = gradients(self.model, _rows(models), *self._examples(rows))
        if isinstance(self.model, NextCharacter):  # bursts of the gradient are cut, as is usual for texts
            found = found * (LONGEST_GRADIENT / found.norm(dim=1, keepdim=True)).clamp(max=1.0)
        return np.asarray(found.numpy(), dtype=np.float64)

    def _batch_rows(self, clients: IntArray, generator: np.random.Generator) -> IntArray:
        """The rows of a mini-batch of each client, drawn with replacement."""
        uniforms = hashed_uniforms(int(generator.integers(1 << 62)), clients, self.batch_size)
        rows: IntArray = batch_rows(uniforms, self.client_sizes[clients], False)
        return self._first_rows[clients, None] + rows

    def _examples(self, rows: IntArray) -> tuple[Tensor, ...]:
        """Inputs and targets of these rows."""
        flat = torch.from_numpy(rows.ravel())
        return tuple(
            part.index_select(0, flat).reshape(*rows.shape, *part.shape[1:])
            for part in (self._inputs, self._targets)
        )

    def client_losses(self, model: FloatArray, clients: IntArray, power: float = 1.0) -> FloatArray:
        """The mean loss of all the training data of ``clients``, or its mean of this ``power``."""
        sizes = self.client_sizes[clients]
        starts = np.cumsum(sizes) - sizes
        rows = np.arange(sizes.sum()) + np.repeat(self._first_rows[clients] - starts, sizes)
        found = self._losses(model, *self._examples(rows))
        return np.asarray((np.add.reduceat(found**power, starts) / sizes) ** (1.0 / power))

    def held_out_losses(self, model: FloatArray) -> FloatArray:
        """The mean loss of each client's held-out part; nan where there is none."""
        found = self._losses(model, *self._held)
        sums = np.bincount(self._held_clients, found, minlength=self.num_clients)
        with np.errstate(invalid="ignore"):
            return np.asarray(sums / self._held_counts)

    def _losses(self, model: FloatArray, inputs: Tensor, targets: Tensor) -> FloatArray:
        row, each = _rows(model[None]), []
        with torch.no_grad():
            for first in range(0, len(inputs), CHUNK):
                some, theirs = inputs[first : first + CHUNK], targets[first : first + CHUNK]
                each.append(losses(self.model, row, some[None], theirs[None])[0])
        return np.asarray(torch.cat(each).numpy(), dtype=np.float64)

    def loss(self, model: FloatArray) -> float:
        """The held-out loss."""
        return self.mean_loss(self.held_out_losses(model))

    def mean_loss(self, client_losses: FloatArray) -> float:
        """The weighted mean over the clients that have held-out data."""
        known = self._held_counts > 0
        weights = self.client_weights[known]
        return float(weights @ client_losses[known] / weights.sum())


def _model(federation: Federation, name: str) -> BatchedModel:
    classes = federation.num_classes
    if name == "gru":
        return NextCharacter(classes)
    if name == "cnn":
        return SmallCNN(classes)
    return (SoftmaxRegression if name == "softmax" else TwoLayers)(federation.inputs.shape[1], classes)


def _rows(models: FloatArray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(models, dtype=np.float32))


def _first_of_each(clients: IntArray, most: int) -> IntArray:
    """The places of the first ``most`` rows of each client; ``clients`` is sorted."""
    starts = np.searchsorted(clients, clients)
    return np.flatnonzero(np.arange(len(clients)) - starts < most)
